// Deferred read-back: steps whose results are read one step later (Trainer::Environment::deferred_results), as on a
// GPU.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/ops/cuda.h"
#include "test/ops/host_launch.h"
#include "test/ops/watch_reads.h"
#include "test/train/mesh_support.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::checkpoint;
using testing::expect_same_bits;
using testing::Folder;
using ::testing::HasSubstr;
using testing::tensors;
using ::testing::Throws;
using testing::tiny_run;

TrainResult train_run(const TrainConfig& config, bool deferred, const std::function<bool()>& stop = {}) {
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = log, .stop_requested = stop, .deferred_results = deferred});
  return trainer.run();
}

void expect_same_run(const TrainConfig& early, const TrainConfig& deferred, int64_t steps) {
  const auto metrics = [&](const TrainConfig& config, const char* key) {
    return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", key);
  };
  for (const char* key : {"loss", "grad_norm", "lr", "num_tokens", "expert_load_max", "validation_loss"}) {
    const auto expected = metrics(early, key);
    EXPECT_EQ(metrics(deferred, key).steps, expected.steps) << key;
    EXPECT_EQ(metrics(deferred, key).values, expected.values) << key;
  }
  EXPECT_EQ(metrics(deferred, "loss").values.size(), static_cast<size_t>(steps));
  for (const char* stem : {"model", "optimizer"}) {
    expect_same_bits(tensors(checkpoint(early, steps), stem), tensors(checkpoint(deferred, steps), stem));
  }
}

TEST(DeferredReadBack, EqualsImmediateReadBack) {
  const std::vector<Overrides> runs = {
      {{"training.mixed_precision_param", "bfloat16"}},
      {{"optimizer.name", "sgd"}, {"optimizer.momentum", "0.9"}, {"optimizer.lr", "0.05"}},
      {{"optimizer.name", "muon"}},
      {{"model.name", "qwen3_moe"},
       {"model.args.num_experts", "8"},
       {"model.args.num_experts_per_tok", "2"},
       {"model.args.moe_intermediate_size", "8"},
       {"model.args.expert_bias", "true"},
       {"training.router_aux_loss_coef", "0.01"}}};
  for (const Overrides& overrides : runs) {
    const Folder one;
    const Folder other;
    const auto early = tiny_run(one.path(), overrides);
    const auto deferred = tiny_run(other.path(), overrides);
    EXPECT_EQ(train_run(early, false).loss, train_run(deferred, true).loss);
    expect_same_run(early, deferred, 12);
  }
}

TEST(DeferredReadBack, IsCompletedWhenARunIsStopped) {
  const Folder one;
  const Folder other;
  const auto once = tiny_run(one.path());
  train_run(once, false);
  const auto twice = tiny_run(other.path());
  int asked = 0;
  const TrainResult stopped = train_run(twice, true, [&] { return ++asked == 5; });
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 5);
  train_run(twice, true);
  expect_same_run(once, twice, 12);
}

TEST(DeferredReadBack, EndsARunWithNonFiniteGradientsBeforeItSaves) {
  const Folder folder;
  const auto config =
      tiny_run(folder.path(), {{"model.args.initializer_range", "1e38"}, {"validation.enable", "false"}});
  EXPECT_THAT(
      [&] { train_run(config, true); },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("step 1: the gradient norm is"))));
  EXPECT_FALSE(std::filesystem::exists(checkpoint(config, 4)));
}

// A task whose batches contain a factor for the loss.
class ScaledTask : public CausalLMTask {
 public:
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return CausalLMTask::compute_loss(outputs, batch) * batch.at("factor").sum();
  }
};

TEST(DeferredReadBack, ANonFiniteStepChangesNothing) {
  const Folder folder;
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(
      tiny_run(
          folder.path(),
          {{"model.name", "qwen3_moe"},
           {"model.args.num_experts", "4"},
           {"model.args.num_experts_per_tok", "2"},
           {"model.args.moe_intermediate_size", "8"},
           {"model.args.expert_bias", "true"}}),
      {.specs = list, .log = log});
  const auto parameters = nn::named_parameters(trainer.model());
  const auto optimizer = testing::default_optimizer(trainer.model());
  const ScaledTask task;
  TrainStep step(trainer.model(), task, *optimizer, {.local_batch_size = 4, .max_norm = 1, .load_balance_coeff = 0.1});
  ASSERT_TRUE(step.can_defer_readback());
  const auto launch = [&](int64_t number, double factor) {
    const at::Tensor ids = at::randint(257, {4, 17}, at::kLong);
    const Batch batch{
        {"input_ids", ids.narrow(1, 0, 16)},
        {"labels", ids.narrow(1, 1, 16)},
        {"position_ids", at::arange(16, at::kLong).expand({4, 16})},
        {"factor", at::full({4, 1}, factor)}};
    StepGradients gradients = step.forward_backward(batch, 0, number);
    step.clip(gradients);
    return step.update(std::move(gradients), /*lr_factor=*/1, /*deferred=*/true);
  };
  const auto everything = [&] {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, parameter] : parameters) {
      tensors.push_back(parameter->value().detach().clone());
    }
    for (const auto& [name, tensor] : optimizer->state()) {
      if (tensor.dim() > 0) {  // except step counters
        tensors.push_back(tensor.clone());
      }
    }
    return tensors;
  };
  const auto changed = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    size_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      count += at::equal(a[i], b[i]) ? 0 : 1;
    }
    return count;
  };
  const auto first = everything();
  EXPECT_TRUE(step.finish(launch(1, 1)).updated);
  const auto before = everything();
  EXPECT_EQ(changed(first, before), first.size());  // biases of experts, too
  LaunchedStep bad = launch(2, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(changed(before, everything()), 0U);
  LaunchedStep after = launch(3, 1);
  EXPECT_EQ(changed(before, everything()), 0U);
  EXPECT_THAT(
      [&] { step.finish(std::move(bad)); }, Throws<Error>(::testing::Property(&Error::what, HasSubstr("step 2"))));
}

// The code paths of a GPU, with its kernels as loops on the host.
TEST(DeferredReadBack, AStepReadsNothingFromTheDevice) {
  const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
  const Overrides clipped{{"training.max_norm", "0.1"}};
  const Overrides mixed{{"training.mixed_precision_param", "bfloat16"}};
  const Overrides stochastic{{"training.dtype", "bfloat16"}, {"optimizer.name", "stochastic_adamw"}};
  const Overrides muon{{"optimizer.name", "muon"}};
  for (const std::vector<Overrides>& overrides :
       {std::vector<Overrides>{}, {mixed, clipped}, {stochastic, clipped}, {muon, clipped}}) {
    const Folder folder;
    Overrides all;
    for (const Overrides& some : overrides) {
      all.insert(all.end(), some.begin(), some.end());
    }
    all.insert(all.end(), {{"validation.enable", "false"}, {"training.steps", "5"}, {"checkpoint.interval", "5"}});
    Logger log("", true);
    const auto list = testing::specs();
    Trainer trainer(tiny_run(folder.path(), all), {.specs = list, .log = log, .deferred_results = true});
    std::optional<ops::test::WatchReads> watch;
    trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
      if (context.step == 3) {
        watch.emplace();
      } else if (context.step == 5) {
        watch.reset();
      }
    });
    trainer.run();
    // One read per step counts the labels of the batch, which is still on the host.
    EXPECT_THAT(ops::test::WatchReads::reads(), ::testing::Each("aten::_local_scalar_dense"));
    EXPECT_EQ(ops::test::WatchReads::reads().size(), 2U);
  }
}

// As on a GPU, where nobody looks at ids before the results of their step are read.
TEST(DeferredReadBack, ReportsAnIdOutsideTheVocabulary) {
  const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
  const Folder folder;
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(tiny_run(folder.path(), {}), {.specs = list, .log = log});
  const auto optimizer = testing::default_optimizer(trainer.model());
  const ScaledTask task;
  TrainStep step(trainer.model(), task, *optimizer, {.local_batch_size = 4});
  const auto launch = [&](int64_t number, int64_t id) {
    at::Tensor ids = at::randint(257, {4, 17}, at::kLong);
    ids[2][5] = id;
    const Batch batch{
        {"input_ids", ids.narrow(1, 0, 16)},
        {"labels", at::zeros({4, 16}, at::kLong)},
        {"position_ids", at::arange(16, at::kLong).expand({4, 16})},
        {"factor", at::ones({4, 1})}};
    StepGradients gradients = step.forward_backward(batch, 0, number);
    step.clip(gradients);
    return step.update(std::move(gradients), /*lr_factor=*/1, /*deferred=*/true);
  };
  EXPECT_TRUE(step.finish(launch(1, 256)).updated);
  LaunchedStep bad = launch(2, 70000);
  EXPECT_THAT(
      [&] { step.finish(std::move(bad)); },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("found 70000 at place 37"))));
  EXPECT_TRUE(step.finish(launch(3, 256)).updated);
}

// Runs `body` with the trainer of each rank, with or without deferred read-back, and returns the error of each rank.
std::vector<std::string> on_ranks(
    const testing::Mesh& mesh,
    const TrainConfig& of_run,
    bool deferred,
    const std::function<void(Trainer& trainer)>& body = [](Trainer& trainer) { trainer.run(); }) {
  const TrainConfig config = testing::with_degrees(of_run, mesh);
  std::vector<std::string> problems(static_cast<size_t>(mesh.world()));
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        Logger log("", true);
        const auto list = testing::specs();
        try {
          Trainer trainer(config, {.specs = list, .log = log, .transport = &transport, .deferred_results = deferred});
          body(trainer);
        } catch (const std::exception& problem) {
          problems[static_cast<size_t>(transport.rank())] = problem.what();
        }
      },
      std::chrono::seconds(60));
  return problems;
}

const std::vector<testing::Mesh> kMeshes{
    {.dp_replicate = 2}, {.dp_shard = 2, .tp = 2}, {.cp = 2, .ep = 2}, {.dp_shard = 2, .pp = 2}};

TEST(DeferredReadBack, OnRanksEqualsImmediateReadBack) {
  for (const testing::Mesh& mesh : kMeshes) {
    SCOPED_TRACE(mesh.name());
    const Folder one;
    const Folder other;
    const auto overrides = testing::family("qwen3_moe");
    const auto early = tiny_run(one.path(), overrides);
    const auto deferred = tiny_run(other.path(), overrides);
    EXPECT_THAT(on_ranks(mesh, early, false), ::testing::Each(""));
    EXPECT_THAT(on_ranks(mesh, deferred, true), ::testing::Each(""));
    expect_same_run(early, deferred, testing::kSteps);
  }
}

// The reads that are left are of tensors on the host: the labels of the batch, and the length of the metrics' names
// that the stages of a pipeline exchange.
TEST(DeferredReadBack, AStepOfRanksReadsNothingFromTheDevice) {
  constexpr size_t kSteps = 2;
  const std::vector<testing::Mesh> meshes{
      {.dp_replicate = 2}, {.dp_shard = 2, .tp = 2}, {.cp = 2}, {.dp_shard = 2, .pp = 2}};
  for (const testing::Mesh& mesh : meshes) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = tiny_run(
        folder.path(), {{"validation.enable", "false"}, {"training.steps", "5"}, {"checkpoint.interval", "5"}});
    std::vector<std::vector<std::string>> reads(static_cast<size_t>(mesh.world()));
    const auto problems = on_ranks(mesh, config, true, [&](Trainer& trainer) {
      const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
      std::optional<ops::test::WatchReads> watch;
      trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
        if (context.step == 3) {
          watch.emplace();
        } else if (context.step == 3 + kSteps) {
          watch.reset();
        }
      });
      trainer.run();
      reads[static_cast<size_t>(trainer.ranks().context()->rank())] = ops::test::WatchReads::reads();
    });
    EXPECT_THAT(problems, ::testing::Each(""));
    const size_t expected = mesh.pp > 1 ? kSteps * (1 + 1) : kSteps;
    for (const auto& of_rank : reads) {
      EXPECT_THAT(of_rank, ::testing::Each("aten::_local_scalar_dense"));
      EXPECT_EQ(of_rank.size(), expected);
    }
  }
}

// If one rank needs the results of every step, no rank defers them; else the others would begin a step that this rank
// never reaches.
TEST(DeferredReadBack, EndsAllRanksInTheSameStep) {
  for (const testing::Mesh& mesh : kMeshes) {
    for (const bool one_is_early : {false, true}) {
      SCOPED_TRACE(mesh.name() + (one_is_early ? ", one rank early" : ""));
      const Folder folder;
      auto overrides = testing::family("qwen3_moe");
      for (const auto& [key, value] : Overrides{
               {"model.args.initializer_range", "1e308"}, {"validation.enable", "false"}, {"training.steps", "4"}}) {
        overrides.emplace_back(key, value);
      }
      const auto config = tiny_run(folder.path(), overrides);
      const auto problems = on_ranks(mesh, config, true, [&](Trainer& trainer) {
        if (one_is_early && trainer.ranks().is_main()) {
          trainer.events().subscribe(Event::step_end, [](const EventContext&) {});
        }
        trainer.run();
      });
      EXPECT_THAT(problems, ::testing::Each(HasSubstr("step 1: the gradient norm is")));
      EXPECT_THAT(problems, ::testing::Each(problems[0])) << "ranks say the same";
    }
  }
}

}  // namespace
}  // namespace lehr::train

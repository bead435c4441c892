// Steps whose results are read a step later (Trainer::Environment::late_results), as on a GPU.
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/ops/cuda.h"
#include "test/ops/host_launch.h"
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
using Overrides = std::vector<std::pair<std::string, std::string>>;

TrainResult train(const TrainConfig& config, bool late, const std::function<bool()>& stop = {}) {
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = log, .stop_requested = stop, .late_results = late});
  return trainer.run();
}

void expect_same_run(const TrainConfig& early, const TrainConfig& late, int64_t steps) {
  const auto metrics = [&](const TrainConfig& config, const char* key) {
    return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", key);
  };
  for (const char* key : {"loss", "grad_norm", "lr", "num_tokens", "expert_load_max", "validation_loss"}) {
    const auto expected = metrics(early, key);
    EXPECT_EQ(metrics(late, key).steps, expected.steps) << key;
    EXPECT_EQ(metrics(late, key).values, expected.values) << key;
  }
  EXPECT_EQ(metrics(late, "loss").values.size(), static_cast<size_t>(steps));
  for (const char* stem : {"model", "optimizer"}) {
    expect_same_bits(tensors(checkpoint(early, steps), stem), tensors(checkpoint(late, steps), stem));
  }
}

TEST(LateResults, AreThoseThatAreReadAtOnce) {
  const std::vector<Overrides> runs = {
      {{"training.mixed_precision_param", "bfloat16"}},
      {{"optimizer.name", "sgd"}, {"optimizer.momentum", "0.9"}, {"optimizer.lr", "0.05"}},
      {{"optimizer.name", "muon"}},  // which cannot leave a step out, so that nothing is late
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
    const auto late = tiny_run(other.path(), overrides);
    EXPECT_EQ(train(early, false).loss, train(late, true).loss);
    expect_same_run(early, late, 12);
  }
}

TEST(LateResults, AreThereWhenARunIsStopped) {
  const Folder one;
  const Folder other;
  const auto once = tiny_run(one.path());
  train(once, false);
  const auto twice = tiny_run(other.path());
  int asked = 0;
  const TrainResult stopped = train(twice, true, [&] { return ++asked == 5; });
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 5);
  train(twice, true);
  expect_same_run(once, twice, 12);
}

TEST(LateResults, EndARunThatIsNotFiniteBeforeItSaves) {
  const Folder folder;
  const auto config =
      tiny_run(folder.path(), {{"model.args.initializer_range", "1e38"}, {"validation.enable", "false"}});
  EXPECT_THAT(
      [&] { train(config, true); },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("step 1: the gradient norm is"))));
  EXPECT_FALSE(std::filesystem::exists(checkpoint(config, 4)));
}

// A task whose batches say what the loss is multiplied by.
class ScaledTask : public CausalLMTask {
 public:
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return CausalLMTask::compute_loss(outputs, batch) * batch.at("factor").sum();
  }
};

TEST(LateResults, ThatAreNotFiniteLeaveEverythingAsItWas) {
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
  ASSERT_TRUE(step.can_be_late());
  const auto launch = [&](int64_t number, double factor) {
    const at::Tensor ids = at::randint(257, {4, 17}, at::kLong);
    const Batch batch{
        {"input_ids", ids.narrow(1, 0, 16)},
        {"labels", ids.narrow(1, 1, 16)},
        {"position_ids", at::arange(16, at::kLong).expand({4, 16})},
        {"factor", at::full({4, 1}, factor)}};
    return step.launch(batch, 0, number, 1.0, /*late=*/true);
  };
  const auto everything = [&] {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, parameter] : parameters) {
      tensors.push_back(parameter->value().detach().clone());
    }
    for (const auto& [name, tensor] : optimizer->state()) {
      if (tensor.dim() > 0) {  // but counters of steps
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

// What of this thread's operators makes the host wait for a device. ATen's optimizers of the CPU, which read their
// steps, stand for others.
thread_local std::vector<std::string> t_reads;
thread_local int t_in_optimizer = 0;

class WatchReads {
 public:
  WatchReads()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {
    t_reads.clear();
  }
  ~WatchReads() { at::removeCallback(handle_); }
  WatchReads(const WatchReads&) = delete;
  WatchReads& operator=(const WatchReads&) = delete;

 private:
  struct InOptimizer : at::ObserverContext {
    InOptimizer() { ++t_in_optimizer; }
    ~InOptimizer() override { --t_in_optimizer; }
  };
  static void end(const at::RecordFunction&, at::ObserverContext*) {}
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const std::string name = function.name();
    if (name.starts_with("aten::_fused_adamw")) {
      return std::make_unique<InOptimizer>();
    }
    for (const char* reads : {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"}) {
      if (t_in_optimizer == 0 && name == std::string("aten::") + reads) {
        t_reads.push_back(name);
      }
    }
    return nullptr;
  }
  at::CallbackHandle handle_;
};

// The paths of a GPU, with its kernels as loops on the host.
TEST(LateResults, LetAStepReadNothingFromTheDevice) {
  const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
  for (const Overrides& overrides :
       {Overrides{}, Overrides{{"training.mixed_precision_param", "bfloat16"}, {"training.max_norm", "0.1"}}}) {
    const Folder folder;
    Overrides all = overrides;
    all.insert(all.end(), {{"validation.enable", "false"}, {"checkpoint.interval", "12"}});
    Logger log("", true);
    const auto list = testing::specs();
    Trainer trainer(tiny_run(folder.path(), all), {.specs = list, .log = log, .late_results = true});
    std::optional<WatchReads> watch;
    trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
      if (context.step == 3) {
        watch.emplace();
      } else if (context.step == 8) {
        watch.reset();
      }
    });
    trainer.run();
    // One a step counts the labels of the batch, which the host still has.
    EXPECT_THAT(t_reads, ::testing::Each("aten::_local_scalar_dense"));
    EXPECT_EQ(t_reads.size(), 5U);
  }
}

}  // namespace
}  // namespace lehr::train

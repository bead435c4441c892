// Silent corruption, planted in one rank of a run: the checks of [reliability] name it.
#include "lehr/train/corruption.h"

#include <gmock/gmock.h>

#include <atomic>
#include <random>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void flip(const at::Tensor& tensor, int64_t bit) {
  auto* const bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
}

TrainConfig run_on(const std::filesystem::path& folder, const testing::Mesh& mesh, Overrides more) {
  more.emplace_back("validation.enable", "false");
  more.emplace_back("checkpoint.enable", "false");
  more.emplace_back("training.global_batch_size", "8");
  return testing::with_degrees(testing::tiny_run(folder, more), mesh);
}

using Plant = std::function<void(int64_t rank, Trainer& trainer)>;

void train_on(const TrainConfig& config, const testing::Mesh& mesh, const Plant& plant) {
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        Logger quiet("", true);
        const auto list = testing::specs();
        Trainer trainer(config, {.specs = list, .log = quiet, .transport = &transport});
        plant(transport.rank(), trainer);
        trainer.run();
      },
      std::chrono::seconds(60));
}

struct Flip {
  int64_t rank = 0;
  int64_t step = 0;
  bool gradient = false;
  bool norms_only = false;  // tensor parallelism replicates norms only
  uint32_t seed = 0;
};

// Flips a random bit of a random tensor of one rank, before the update of a step. Stores the tensor's name.
Plant plant_of(const Flip& planted, std::string& name) {
  return [&](int64_t rank, Trainer& trainer) {
    if (rank != planted.rank) {
      return;
    }
    trainer.events().subscribe(Event::gradients_ready, [&](const EventContext& context) {
      if (context.step != planted.step) {
        return;
      }
      std::mt19937 random(planted.seed);
      std::vector<nn::NamedParameter> choice;
      for (const auto& entry : nn::named_parameters(trainer.model())) {
        if (!planted.norms_only || entry.name.find("norm") != std::string::npos) {
          choice.push_back(entry);
        }
      }
      const auto& chosen = choice[random() % choice.size()];
      name = chosen.name;
      const at::Tensor value = chosen.parameter->value();
      const at::Tensor tensor = planted.gradient ? value.grad() : value;
      flip(tensor, static_cast<int64_t>(random() % (tensor.nbytes() * 8)));
    });
  };
}

std::string error_of(const TrainConfig& config, const testing::Mesh& mesh, const Plant& plant) {
  try {
    train_on(config, mesh, plant);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Flips on each of two meshes, of a weight or of a reduced gradient, of any bit: 4 each, or 25 with LEHR_ALL_MESHES=1.
TEST(Replicas, AFlippedBitIsNamedWithRankTensorAndStep) {
  const testing::Mesh with_majority{.dp_replicate = 3}, pairs{.dp_replicate = 2, .tp = 2};
  const testing::Folder folder;
  const uint32_t each = testing::all_meshes() ? 25 : 4;
  for (uint32_t number = 0; number < 2 * each; ++number) {
    const bool first = number < each;
    const testing::Mesh& mesh = first ? with_majority : pairs;
    const Flip planted{
        .rank = static_cast<int64_t>(number) % mesh.world(),
        .step = 2 + 2 * (number % 2),
        .gradient = number % 3 == 0,
        .seed = number};
    auto config = run_on(folder.path(), mesh, {{"reliability.hash_every_n_steps", "2"}, {"training.steps", "4"}});
    config.training.global_batch_size = first ? 6 : 8;
    std::string name;
    const std::string error = error_of(config, mesh, plant_of(planted, name));
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr(fmt::format("step {}: silent corruption", planted.step)),
            HasSubstr(fmt::format("the {} {} ", planted.gradient ? "gradient of" : "weight", name)),
            HasSubstr(fmt::format("rank {} (", planted.rank)),
            HasSubstr("the update was not applied")))
        << number;
    if (first) {
      EXPECT_THAT(error, HasSubstr(fmt::format("is not that of the other replicas on rank {} (", planted.rank)));
      EXPECT_EQ(error.find(" and rank"), std::string::npos) << error;
    }
  }
}

// Tensor parallelism replicates norms, which are sharded over fsdp and compared between the ranks of tp.
TEST(Replicas, NormsThatTensorParallelismReplicatesAreCompared) {
  const testing::Mesh mesh{.dp_shard = 2, .tp = 2};
  const testing::Folder folder;
  const auto config = run_on(folder.path(), mesh, {{"reliability.hash_every_n_steps", "1"}, {"training.steps", "3"}});
  std::string name;
  const Flip planted{.rank = 3, .step = 2, .norms_only = true, .seed = 5};
  const std::string error = error_of(config, mesh, plant_of(planted, name));
  EXPECT_THAT(error, AllOf(HasSubstr(name), HasSubstr("rank 2 (dp_shard 1, tp 0) and rank 3 (dp_shard 1, tp 1)")));
}

TEST(Replicas, AFlipBetweenTwoComparisonsIsFoundByTheNext) {
  const testing::Mesh mesh{.dp_replicate = 3};
  const testing::Folder folder;
  auto config = run_on(folder.path(), mesh, {{"reliability.hash_every_n_steps", "4"}, {"training.steps", "8"}});
  config.training.global_batch_size = 6;
  std::string name;
  const std::string error = error_of(config, mesh, plant_of({.rank = 1, .step = 2, .seed = 3}, name));
  EXPECT_THAT(error, AllOf(HasSubstr("step 4: "), HasSubstr("weight " + name)));
}

TEST(Replicas, WarningsLetTheRunGoOn) {
  const testing::Mesh mesh{.dp_replicate = 2};
  const testing::Folder folder;
  const auto config =
      run_on(folder.path(), mesh, {{"reliability.hash_every_n_steps", "2"}, {"reliability.on_corruption", "warn"}});
  std::string name;
  EXPECT_EQ(error_of(config, mesh, plant_of({.rank = 1, .step = 2, .seed = 1}, name)), "");
}

// 25 steps on each of three meshes, or 2,000 with LEHR_ALL_MESHES=1: replicas are compared in each step, and the
// arithmetic is checked in every fourth.
TEST(SilentCorruption, IsNotReportedWithoutAFault) {
  using testing::Mesh;
  for (const Mesh& mesh :
       {Mesh{.dp_replicate = 2, .tp = 2}, Mesh{.dp_shard = 2, .cp = 2}, Mesh{.dp_replicate = 2, .pp = 2}}) {
    const testing::Folder folder;
    const auto config = run_on(
        folder.path(),
        mesh,
        {{"reliability.hash_every_n_steps", "1"},
         {"reliability.recompute_every_n_steps", "4"},
         {"training.steps", testing::all_meshes() ? "2000" : "25"}});
    EXPECT_EQ(error_of(config, mesh, [](int64_t, Trainer&) {}), "");
  }
}

TEST(SilentCorruption, StagesThatShareATableAreNoFault) {
  const testing::Mesh mesh{.dp_shard = 2, .pp = 2};
  const testing::Folder folder;
  const auto config = run_on(
      folder.path(), mesh, {{"reliability.hash_every_n_steps", "1"}, {"model.args.tie_word_embeddings", "true"}});
  EXPECT_EQ(error_of(config, mesh, [](int64_t, Trainer&) {}), "");
}

// A task whose losses of chosen calls on one rank are off by one bit, or more with each call.
class WrongTask : public CausalLMTask {
 public:
  WrongTask(std::function<double(int64_t call)> factor) : factor_(std::move(factor)) {}
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return CausalLMTask::compute_loss(outputs, batch) * factor_(++calls_);
  }

 private:
  std::function<double(int64_t call)> factor_;
  mutable std::atomic<int64_t> calls_ = 0;
};

std::string error_with(const std::function<double(int64_t call)>& factor, const Overrides& more = {}) {
  const testing::Folder folder;
  Overrides all{{"reliability.recompute_every_n_steps", "2"}, {"training.global_batch_size", "2"}};
  const auto config = testing::tiny_run(folder.path(), testing::joined(all, more));
  Logger quiet("", true);
  TrainSpecs list;
  TrainSpec spec{.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense};
  spec.build.task = [&](const TrainConfig&) { return std::make_unique<WrongTask>(factor); };
  list.add(std::move(spec));
  try {
    Trainer(config, {.specs = list, .log = quiet}).run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

constexpr double kOneBit = 1 + 1.2e-7;  // float32

// Calls of the task: step 1, the two runs of step 2, its third run.
TEST(Arithmetic, AnErrorOfOneRunIsTransient) {
  for (const int64_t wrong : {2, 3}) {
    EXPECT_THAT(
        error_with([&](int64_t call) { return call == wrong ? kOneBit : 1.0; }),
        AllOf(HasSubstr("step 2: silent corruption"), HasSubstr("in the loss on this device"), HasSubstr("transient")));
  }
}

TEST(Arithmetic, AnErrorThatChangesWithEveryRunLasts) {
  EXPECT_THAT(
      error_with([](int64_t call) { return 1 + static_cast<double>(call) / 1000; }),
      AllOf(HasSubstr("step 2: silent corruption"), HasSubstr("agrees with neither: the error lasts")));
}

TEST(Arithmetic, OtherStepsAreNotChecked) {
  EXPECT_EQ(error_with([](int64_t call) { return call == 1 ? kOneBit : 1.0; }), "");
  EXPECT_EQ(error_with([](int64_t call) { return call == 4 ? kOneBit : 1.0; }), "");  // the step's own run
  EXPECT_EQ(
      error_with([](int64_t call) { return call == 2 ? kOneBit : 1.0; }, {{"reliability.on_corruption", "warn"}}), "");
}

// The check leaves no trace: losses of a run with it have the bits of a run without.
TEST(Arithmetic, TheCheckChangesNoBits) {
  std::vector<std::vector<double>> losses;
  for (const char* const every : {"0", "1"}) {
    const testing::Folder folder;
    const auto config = testing::tiny_run(folder.path(), {{"reliability.recompute_every_n_steps", every}});
    testing::train(config);
    losses.push_back(metric::read_metric(folder.path() / "out/metrics.jsonl", "loss").values);
  }
  EXPECT_EQ(losses[0].size(), 12U);
  EXPECT_EQ(losses[0], losses[1]);
}

// A step has two micro-batches, so the two runs of step 2 are the third and the fourth.
TEST(Arithmetic, OfAPipelineIsCheckedInAMicroBatchOfItsStages) {
  for (const int64_t wrong : {2, 4}) {
    const testing::Folder folder;
    const testing::Mesh mesh{.pp = 2};
    const auto config = testing::with_degrees(
        testing::tiny_run(
            folder.path(), {{"reliability.recompute_every_n_steps", "2"}, {"training.global_batch_size", "4"}}),
        mesh);
    const auto train = [&] {
      mesh::run_ranks(
          mesh.world(),
          [&](mesh::Transport& transport) {
            Logger quiet("", true);
            TrainSpecs list;
            TrainSpec spec{.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense};
            spec.build.task = [&](const TrainConfig&) {
              return std::make_unique<WrongTask>([&](int64_t call) { return call == wrong ? kOneBit : 1.0; });
            };
            list.add(std::move(spec));
            Trainer(config, {.specs = list, .log = quiet, .transport = &transport}).run();
          },
          std::chrono::seconds(60));
    };
    if (wrong == 2) {
      EXPECT_NO_THROW(train()) << "a micro-batch of step 1, which is not checked";
      continue;
    }
    EXPECT_THAT(
        train,
        ::testing::Throws<std::exception>(::testing::Property(
            &std::exception::what,
            AllOf(
                HasSubstr("step 2: silent corruption"),
                HasSubstr("in the loss on rank 1 (pp 1), or in a stage before it"),
                HasSubstr("transient")))));
  }
}

TEST(Arithmetic, OfCudaGraphsIsRefused) {
  const testing::Folder folder;
  EXPECT_THAT(
      [&] {
        testing::tiny_run(
            folder.path(), {{"reliability.recompute_every_n_steps", "1"}, {"training.cuda_graphs", "true"}});
      },
      ThrowsMessage<Error>(HasSubstr("training.cuda_graphs does not run single micro-batches")));
}

}  // namespace
}  // namespace lehr::train

// Checkpoints of many ranks: the files equal those of one device on every mesh, and every mesh reads them.
#include <gmock/gmock.h>

#include <array>
#include <fstream>

#include "lehr/meter/memory_meter.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/async_checkpointer.h"
#include "lehr/state/integrity.h"
#include "lehr/state/map_stream.h"
#include "lehr/train/builders.h"
#include "lehr/train/find_checkpoint.h"
#include "lehr/train/run_changes.h"
#include "lehr/train/run_checkpoint.h"
#include "test/base/error_of.h"
#include "test/train/sharded_support.h"

namespace lehr::train {
namespace {

namespace fs = std::filesystem;
using descriptor::ExpertLayout;
using mesh::DeviceMeshParameters;
using mesh::DistributedContext;
using state::Coordinator;
using ::testing::AllOf;
using testing::contents_of;
using ::testing::ElementsAre;
using testing::expect_same_numbers;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::on_mesh;
using testing::RankModel;
using ::testing::StartsWith;

// Shards are even, uneven (24 rows over five ranks) or empty (16 rows over five ranks: 4, 4, 4, 4, 0).
const std::vector<DeviceMeshParameters> kMeshes = {
    {},
    {.data_parallel_shard = 4},
    {.data_parallel_shard = 2, .tensor_parallel = 2},
    {.data_parallel_shard = 4, .expert_parallel = 4},
    {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2},
    {.data_parallel_shard = 8},
    {.tensor_parallel = 4},
    {.data_parallel_shard = 5},
    {.context_parallel = 2, .tensor_parallel = 2, .expert_parallel = 4},
    {.pipeline_parallel = 2, .data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2},
};

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

void expect_same_files(const fs::path& a, const fs::path& b) {
  const auto left = files_of(a);
  const auto right = files_of(b);
  EXPECT_EQ(left.size(), right.size());
  for (const auto& [name, content] : left) {
    EXPECT_TRUE(right.contains(name) && right.at(name) == content) << name << " of " << b;
  }
}

// Saves the numbers of `seed` asynchronously, as in training.
void save_on(const DeviceMeshParameters& mesh, const fs::path& root, int64_t step, uint64_t seed, ExpertLayout layout) {
  on_mesh(mesh, [&](DistributedContext& context, Coordinator& coordinator) {
    RankModel rank(&context);
    rank.fill(seed);
    const std::shared_ptr<Coordinator> shared(&coordinator, [](Coordinator*) {});
    state::AsyncCheckpointer writer(state::CheckpointStore(root), 0, shared);
    writer.save(contents_of(rank, rank.args->state_map(layout), &context, coordinator, step));
    rank.fill(0);
    writer.wait();
    const auto result = writer.poll();
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->error, "");
  });
}

void save_on_one_device(
    const fs::path& root, int64_t step, uint64_t seed, ExpertLayout layout, int64_t max_shard_bytes = 40'000) {
  RankModel rank(nullptr);
  rank.fill(seed);
  state::OneRank alone;
  state::CheckpointStore store(root);
  // As in a run on one device: whole tensors.
  auto contents = contents_of(rank, rank.args->state_map(layout), nullptr, alone, step, max_shard_bytes);
  contents.weights[0].all = contents.weights[1].all = {};
  contents.weights[0].parts = contents.weights[1].parts = {};
  contents.weights[0].tensors = pretrained::stored_tensors(*rank.model, rank.args->state_map(layout));
  contents.weights[1].tensors = rank.optimizer->state();
  write_checkpoint(store, contents);
}

void expect_loads_on(const DeviceMeshParameters& mesh, const fs::path& folder, uint64_t seed) {
  on_mesh(mesh, [&](DistributedContext& context, Coordinator& coordinator) {
    RankModel rank(&context);
    rank.fill(seed);
    const auto expected = rank.numbers();
    rank.fill(0);
    const state::WeightReader reader(folder);
    pretrained::load_weights(*rank.model, pretrained::checkpoint_map(*rank.args, reader), reader);
    const auto all =
        of_all_stages(share_of_optimizer(*rank.optimizer, *rank.model, &context).all, {}, context, coordinator, "all");
    load_optimizer(*rank.optimizer, *rank.model, all, state::WeightReader(folder, "optimizer"));
    expect_same_numbers(rank.numbers(), expected, mesh.describe());
  });
}

class EveryLayout : public ::testing::TestWithParam<ExpertLayout> {};

TEST_P(EveryLayout, EveryMeshWritesTheFilesOfOneDeviceAndReadsThoseOfOthers) {
  const Folder folder;
  save_on_one_device(folder.path() / "one", 3, 7, GetParam());
  const fs::path expected = folder.path() / "one/step-3";
  EXPECT_GT(state::WeightReader(expected).files().size(), 2);
  for (size_t i = 0; i < kMeshes.size(); i += GetParam() == ExpertLayout::fused ? 3 : 1) {
    SCOPED_TRACE(kMeshes[i].describe());
    const fs::path root = folder.path() / std::to_string(i);
    save_on(kMeshes[i], root, 3, 7, GetParam());
    expect_same_files(expected, root / "step-3");
    EXPECT_THAT(state::CheckpointStore(root).list(), ::testing::SizeIs(1));
    expect_loads_on(kMeshes[(i + 1) % kMeshes.size()], root / "step-3", 7);
    constexpr std::array<size_t, 10> kOthers{2, 3, 0, 0, 6, 0, 9, 5, 7, 4};
    expect_loads_on(kMeshes[kOthers[i]], root / "step-3", 7);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Experts, EveryLayout, ::testing::Values(ExpertLayout::per_expert, ExpertLayout::fused), [](const auto& param) {
      return param.param == ExpertLayout::fused ? "fused" : "per_expert";
    });

// A source that counts the requested bytes.
class CountingSource : public state::TensorSource {
 public:
  explicit CountingSource(const TensorSource& inner) : inner_(inner) {}
  at::Tensor read(const std::string& name, const Box& box) const override {
    at::Tensor part = inner_.read(name, box);
    bytes_ += static_cast<int64_t>(part.nbytes());
    return part;
  }
  int64_t bytes() const { return bytes_; }

 private:
  const TensorSource& inner_;
  mutable int64_t bytes_ = 0;
};

TEST_P(EveryLayout, EachRankReadsOnlyItsBoxes) {
  const Folder folder;
  save_on_one_device(folder.path(), 1, 7, GetParam());
  const state::WeightReader reader(folder.path() / "step-1");
  for (const auto& mesh : kMeshes) {
    on_mesh(mesh, [&](DistributedContext& context, Coordinator&) {
      RankModel rank(&context);
      const state::StateMap map = pretrained::checkpoint_map(*rank.args, reader);
      const state::WeightSource files(reader);
      const CountingSource source(files);
      pretrained::read_parameters(*rank.model, state::BoundMap(map, state::specs_of(reader)), source);
      int64_t held = 0;
      for (const auto& [name, parameter] : nn::named_parameters(*rank.model)) {
        held += static_cast<int64_t>(parameter->value().nbytes());
      }
      EXPECT_EQ(source.bytes(), held) << mesh.describe();
      EXPECT_LE(held, reader.total_bytes());
    });
  }
}

TEST(ShardedCheckpoint, AFailingRankFailsTheSaveOnAllRanksAndKeepsTheOneBefore) {
  const Folder folder;
  std::vector<std::string> errors(4);
  std::vector<std::string> errors_while_writing(4);
  on_mesh({.data_parallel_shard = 4}, [&](DistributedContext& context, Coordinator& coordinator) {
    RankModel rank(&context);
    rank.fill(7);
    const auto map = rank.args->state_map(ExpertLayout::per_expert);
    const std::shared_ptr<Coordinator> shared(&coordinator, [](Coordinator*) {});
    state::AsyncCheckpointer writer(state::CheckpointStore(folder.path()), 1, shared);
    const auto save = [&](int64_t step, bool broken) {
      auto contents = contents_of(rank, map, &context, coordinator, step);
      if (broken) {  // a tensor without storage can be neither copied nor written
        auto& part = contents.weights[0].parts.at(2);
        part.tensor = at::empty_like(part.tensor, at::kMeta);
      }
      return contents;
    };
    const auto me = static_cast<size_t>(context.rank());
    writer.save(save(1, false));
    writer.save(save(2, context.rank() == 2));
    writer.wait();
    EXPECT_EQ(writer.poll()->error, "");
    errors[me] = writer.poll()->error;
    state::CheckpointStore store(folder.path());
    try {
      write_checkpoint(store, save(3, context.rank() == 1), coordinator);
    } catch (const Error& error) {
      errors_while_writing[me] = error.what();
    }
    // The next save succeeds.
    writer.save(save(4, false));
    writer.wait();
    EXPECT_EQ(writer.poll()->error, "");
  });
  EXPECT_THAT(errors, ::testing::Each(errors.front()));
  EXPECT_THAT(errors.front(), StartsWith("rank 2: "));
  EXPECT_THAT(errors_while_writing, ::testing::Each(errors_while_writing.front()));
  EXPECT_THAT(errors_while_writing.front(), StartsWith("rank 1: "));
  EXPECT_FALSE(fs::exists(folder.path() / "step-2") || fs::exists(folder.path() / "step-3"));
  EXPECT_FALSE(fs::exists(folder.path() / ".step-2.saving") || fs::exists(folder.path() / ".step-3.saving"));
  expect_loads_on({.tensor_parallel = 2}, folder.path() / "step-4", 7);
}

TEST(ShardedCheckpoint, DetectsRanksThatSeeDifferentFolders) {
  const Folder folder;
  on_mesh({.data_parallel_shard = 2}, [&](DistributedContext& context, Coordinator& coordinator) {
    RankModel rank(&context);
    rank.fill(7);
    state::CheckpointStore store(folder.path() / std::to_string(context.rank()));
    const auto map = rank.args->state_map(ExpertLayout::per_expert);
    EXPECT_THAT(
        any_error::error_of(
            [&] { write_checkpoint(store, contents_of(rank, map, &context, coordinator, 1), coordinator); }),
        AllOf(
            StartsWith("rank 1: "),
            HasSubstr("1/.step-1.saving/model-00001-of-"),
            HasSubstr("cannot be opened for writing"),
            HasSubstr("all ranks must share the folder")));
  });
}

TEST(ShardedCheckpoint, DetectsBytesThatNoRankWrote) {
  const Folder folder;
  on_mesh({.data_parallel_shard = 2}, [&](DistributedContext& context, Coordinator& coordinator) {
    RankModel rank(&context);
    rank.fill(7);
    state::CheckpointStore store(folder.path());
    auto contents =
        contents_of(rank, rank.args->state_map(ExpertLayout::per_expert), &context, coordinator, 1, 1'000'000);
    if (context.rank() == 1) {
      contents.weights[1].parts.pop_back();
    }
    EXPECT_THAT(
        any_error::error_of([&] { write_checkpoint(store, contents, coordinator); }),
        AllOf(HasSubstr("optimizer.safetensors: "), HasSubstr("do not hold every element exactly once")));
  });
}

void flip_bit(const fs::path& file, int64_t from_end) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-from_end, std::ios::end);
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(-from_end, std::ios::end);
  stream.put(byte);
}

class FindCheckpoint : public ::testing::TestWithParam<int64_t> {};

TEST_P(FindCheckpoint, SkipsDamagedCheckpointsAndNamesTheFile) {
  const Folder folder;
  for (const int64_t step : {10, 20, 30, 40}) {
    save_on_one_device(folder.path(), step, 7, ExpertLayout::per_expert, 1'000'000);
  }
  flip_bit(folder.path() / "step-20/model.safetensors", 100);
  flip_bit(folder.path() / "step-30/optimizer.safetensors", 1);
  fs::resize_file(
      folder.path() / "step-40/model.safetensors", fs::file_size(folder.path() / "step-40/model.safetensors") - 4);
  std::vector<std::string> warnings;
  on_mesh({.data_parallel_shard = GetParam()}, [&](DistributedContext& context, Coordinator& coordinator) {
    state::CheckpointStore store(folder.path());
    EXPECT_THAT(
        any_error::error_of([&] { find_checkpoint(store, 20, true, coordinator); }),
        AllOf(StartsWith("checkpoint.load_step: "), HasSubstr("model.safetensors: ")));
    const FoundCheckpoint found = find_checkpoint(store, std::nullopt, true, coordinator);
    EXPECT_EQ(found.folder, folder.path() / "step-10");
    if (context.is_main_process()) {
      warnings = found.warnings;
    }
  });
  EXPECT_THAT(
      warnings,
      ElementsAre(
          AllOf(
              HasSubstr("step-40/model.safetensors: has "),
              HasSubstr(
                  " were saved; that checkpoint is set aside as step-40.damaged, and the run resumes from step 10")),
          AllOf(
              HasSubstr("step-30/optimizer.safetensors: its bytes changed since it was saved"),
              HasSubstr("step-30.damaged")),
          HasSubstr("step-20/model.safetensors: its bytes changed since it was saved")));
  EXPECT_TRUE(fs::exists(folder.path() / "step-30.damaged"));
}

// Here integrity.json covers the tensors only.
TEST_P(FindCheckpoint, SkipsCheckpointsWithoutReadableConfigOrState) {
  const Folder folder;
  for (const int64_t step : {10, 20, 30, 40}) {
    save_on_one_device(folder.path(), step, 7, ExpertLayout::per_expert, 1'000'000);
  }
  fs::resize_file(folder.path() / "step-20/config.json", 0);
  fs::remove(folder.path() / "step-30/config.json");
  fs::resize_file(folder.path() / "step-40/trainer.json", 1);
  std::vector<std::string> warnings;
  on_mesh({.data_parallel_shard = GetParam()}, [&](DistributedContext& context, Coordinator& coordinator) {
    state::CheckpointStore store(folder.path());
    const FoundCheckpoint found = find_checkpoint(store, std::nullopt, true, coordinator);
    EXPECT_EQ(found.folder, folder.path() / "step-10");
    if (context.is_main_process()) {
      warnings = found.warnings;
    }
  });
  EXPECT_THAT(
      warnings,
      ElementsAre(
          AllOf(HasSubstr("step-40/trainer.json"), HasSubstr("step-40.damaged")),
          HasSubstr("step-30/config.json"),
          HasSubstr("step-20/config.json")));
}

TEST_P(FindCheckpoint, DoesNotStartANewRunIfAllAreDamaged) {
  const Folder folder;
  on_mesh({.data_parallel_shard = GetParam()}, [&](DistributedContext&, Coordinator& coordinator) {
    state::CheckpointStore store(folder.path());
    EXPECT_FALSE(find_checkpoint(store, std::nullopt, true, coordinator).folder.has_value());
  });
  save_on_one_device(folder.path(), 10, 7, ExpertLayout::per_expert, 1'000'000);
  fs::remove(folder.path() / "step-10/model.safetensors");
  on_mesh({.data_parallel_shard = GetParam()}, [&](DistributedContext&, Coordinator& coordinator) {
    state::CheckpointStore store(folder.path());
    EXPECT_THAT(
        any_error::error_of([&] { find_checkpoint(store, std::nullopt, true, coordinator); }),
        AllOf(HasSubstr("all checkpoints are damaged: "), HasSubstr("model.safetensors")));
  });
  EXPECT_TRUE(fs::exists(folder.path() / "step-10"));
}
INSTANTIATE_TEST_SUITE_P(Ranks, FindCheckpoint, ::testing::Values(1, 3));

// A rank of a run with all that its checkpoints need.
struct RankRun {
  TrainConfig config;
  descriptor::ModelFamily family = model::qwen3_moe_family();
  std::unique_ptr<data::Tokenizer> tokenizer;
  RankModel rank;
  RunCheckpoints checkpoints;

  RankRun(const fs::path& root, DistributedContext* context)
      : config(testing::tiny_run(root)),
        tokenizer(build_tokenizer(config)),
        rank(context),
        checkpoints(config, family, *rank.args, *tokenizer, *rank.model, *rank.optimizer, context) {}
};

// One rank writes the config file of the folder before the others read it.
fs::path own_folder(const fs::path& root, const DistributedContext* context) {
  const fs::path folder = root / std::to_string(context == nullptr ? 0 : context->rank());
  fs::create_directories(folder);
  fs::create_directories(root / "shared");
  if (!fs::exists(folder / "out")) {
    fs::create_directory_symlink(root / "shared", folder / "out");
  }
  return folder;
}

const RunState kStart = {.seed = 3, .rows_per_step = 4, .seq_len = 32};

TEST(RunCheckpointsOfManyRanks, ResumeFromTheNewestUndamagedOneOnAnyMesh) {
  const Folder folder;
  RunState state = kStart;
  state.num_tokens = 77;
  on_mesh({.data_parallel_shard = 2, .tensor_parallel = 2}, [&, state](DistributedContext& context, Coordinator&) {
    RankRun run(own_folder(folder.path(), &context), &context);
    EXPECT_FALSE(run.checkpoints.find().has_value());
    for (const int64_t step : {4, 8}) {
      RunState now = state;
      now.step = step;
      run.rank.fill(static_cast<uint64_t>(step));
      EXPECT_EQ(run.checkpoints.save(now), std::nullopt);
    }
    EXPECT_EQ(run.checkpoints.wait(), std::nullopt);
  });
  const fs::path newest = folder.path() / "shared/checkpoints/step-8";
  flip_bit(newest / "model.safetensors", 10);
  const auto expect_goes_on = [&](DistributedContext* context, bool first) {
    RankRun run(own_folder(folder.path(), context), context);
    const auto found = run.checkpoints.find();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->filename(), "step-4");
    const bool tells = first && (context == nullptr || context->is_main_process());
    EXPECT_EQ(run.checkpoints.take_warnings().size(), tells ? 1 : 0);
    const RunState then = run.checkpoints.check(*found, {.start = kStart}).state;
    run.checkpoints.load(*found);
    EXPECT_EQ(then.step, 4);
    EXPECT_EQ(then.num_tokens, 77);
    const auto loaded = run.rank.numbers();
    run.rank.fill(4);
    expect_same_numbers(loaded, run.rank.numbers(), "step 4");
  };
  on_mesh(
      {.data_parallel_shard = 3}, [&](DistributedContext& context, Coordinator&) { expect_goes_on(&context, true); });
  expect_goes_on(nullptr, false);
  EXPECT_TRUE(fs::exists(newest.string() + ".damaged"));
}

// After a save, exactly the copies remain in memory: of everything on one device, and of its own part on each rank.
TEST(RunCheckpointsOfManyRanks, KeepTheReportedBytes) {
  const Folder folder;
  const auto expect_told = [&](DistributedContext* context) {
    RankRun run(own_folder(folder.path(), context), context);
    run.rank.fill(7);
    const int64_t told = run.checkpoints.copied_bytes();
    const MemoryMeter meter(at::kCPU);
    for (const int64_t step : {4, 8}) {
      RunState now = kStart;
      now.step = step + (context == nullptr ? 0 : 100);
      EXPECT_EQ(run.checkpoints.save(now), std::nullopt);
      EXPECT_EQ(run.checkpoints.wait(), std::nullopt);
      EXPECT_EQ(meter.now(), told);
    }
    const int64_t whole = 3 * 4 * nn::count_parameters(*run.rank.args->build({}));  // value and two moments
    if (context == nullptr) {
      EXPECT_GT(told, whole);  // and the step counters
      EXPECT_LT(told, 1.01 * static_cast<double>(whole));
    } else {
      EXPECT_GT(told, 0);
      EXPECT_LT(told, whole);
    }
  };
  expect_told(nullptr);
  on_mesh({.data_parallel_shard = 2, .tensor_parallel = 2}, [&](DistributedContext& context, Coordinator&) {
    expect_told(&context);
  });
}

TEST(RunCheckpointsOfManyRanks, FailOnAllRanksIfOneFails) {
  const Folder folder;
  on_mesh({.data_parallel_shard = 3}, [&](DistributedContext& context, Coordinator&) {
    RankRun run(own_folder(folder.path(), &context), &context);
    run.rank.fill(7);
    RunState now = kStart;
    now.step = 4;
    EXPECT_EQ(run.checkpoints.save(now), std::nullopt);
    EXPECT_EQ(run.checkpoints.wait(), std::nullopt);
    RunState other = kStart;
    other.seed += context.rank() == 2 ? 1 : 0;
    EXPECT_THAT(
        any_error::error_of([&] { run.checkpoints.check(*run.checkpoints.find(), {.start = other}); }),
        AllOf(StartsWith("rank 2: "), HasSubstr("debug.seed")));
    if (context.rank() == 1) {
      at::NoGradGuard no_grad;
      nn::named_parameters(*run.rank.model).front().parameter->value().fill_(std::nan(""));
    }
    now.step = 8;
    EXPECT_THAT(
        any_error::error_of([&] { run.checkpoints.save(now); }),
        StartsWith("step 8: model.embed_tokens.token_embedding.default.weight is not finite any more"));
    EXPECT_EQ(run.checkpoints.wait(), std::nullopt);
  });
  EXPECT_FALSE(fs::exists(folder.path() / "shared/checkpoints/step-8"));
}

TEST(StoreCoordinator, EveryRankGetsTheResultOfTheMainRank) {
  on_mesh({.data_parallel_shard = 3}, [&](DistributedContext& context, Coordinator& coordinator) {
    for (int round = 0; round < 3; ++round) {
      EXPECT_THAT(
          coordinator.exchange("k", fmt::format("{}:{}", round, context.rank())),
          ElementsAre(fmt::format("{}:0", round), fmt::format("{}:1", round), fmt::format("{}:2", round)));
    }
    EXPECT_EQ(coordinator.from_main("m", [&] { return std::to_string(context.rank()); }), "0");
  });
}

TEST(StoreCoordinator, ALaterOneOfTheSameNameDoesNotReadOldMessages) {
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    for (const char* said : {"first", "second"}) {
      StoreCoordinator coordinator(transport, "test", std::chrono::seconds(20));
      EXPECT_EQ(coordinator.from_main("k", [&] { return std::string(said); }), said);
    }
  });
}

TEST(StoreCoordinator, AFailureOfOneRankFailsAllAndNamesTheRank) {
  on_mesh({.data_parallel_shard = 3}, [&](DistributedContext& context, Coordinator& coordinator) {
    const auto failing = [&](int64_t from) {
      try {
        coordinator.all_succeed("k", [&] { require(context.rank() < from, "x: no"); });
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_EQ(failing(3), "");
    EXPECT_EQ(failing(2), "rank 2: x: no");
    EXPECT_EQ(failing(1), "rank 1 (and 1 more of 3): x: no");
  });
}

TEST(StoreCoordinator, NamesTheRankThatDoesNotAnswer) {
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    StoreCoordinator coordinator(transport, "test");
    coordinator.hurry(std::chrono::milliseconds(50));
    if (transport.rank() == 0) {
      EXPECT_THAT(
          any_error::error_of([&] { coordinator.exchange("parts", ""); }),
          HasSubstr("test: no answer from rank 1 (parts)"));
    }
  });
}

}  // namespace
}  // namespace lehr::train

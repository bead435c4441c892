// A run that changes settings when it resumes equals, bit for bit, a run that is given the same sequences by hand.
#include "lehr/train/run_changes.h"

#include <gmock/gmock.h>

#include <fstream>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/config/json.h"
#include "test/base/error_of.h"
#include "test/train/given_batches.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::checkpoint;
using testing::curve;
using testing::Folder;
using ::testing::HasSubstr;
using testing::joined;
using testing::train;

constexpr int64_t kBefore = 4;  // steps, of 4 sequences of 32 tokens
constexpr int64_t kAfter = 5;
constexpr int64_t kSequences = 4 * kBefore;

const Overrides kRun{
    {"training.steps", std::to_string(kBefore + kAfter)},
    {"checkpoint.interval", "100"},
    {"validation.enable", "false"},
    {"data.datasets", R"([{path = "recipe/data/tinyshakespeare.txt"}, {path = "README.md", kind = "text"}])"}};

// Sequences of the data of a config, read one by one.
struct Part {
  TrainConfig config;
  int64_t first;  // of all
  int64_t rows;   // of a step
  int64_t steps;
};

std::vector<Batch> steps_of(const Part& part) {
  const auto tokenizer = build_tokenizer(part.config);
  const RunData data = open_run_data(part.config, *tokenizer, {.vocab_size = 257}, [](const std::string&) {});
  const auto sequences = data.train(RowShare::all(1), 0);
  for (int64_t i = 0; i < part.first; ++i) {
    sequences->next();
  }
  std::vector<Batch> steps;
  for (int64_t step = 0; step < part.steps; ++step) {
    std::map<std::string, std::vector<at::Tensor>> rows;
    for (int64_t row = 0; row < part.rows; ++row) {
      const auto sequence = sequences->next();
      for (const auto& [name, tensor] : value_of(sequence, "a sequence")) {
        rows[name].push_back(tensor);
      }
    }
    Batch batch;
    for (const auto& [name, tensors] : rows) {
      batch[name] = at::cat(tensors);
    }
    steps.push_back(std::move(batch));
  }
  return steps;
}

// One run, never stopped, of `before` and then `after`; its learning rates after the change are those of the latter.
void train_written_out(const Part& before, const Part& after) {
  std::vector<Batch> steps = steps_of(before);
  for (Batch& batch : steps_of(after)) {
    steps.push_back(std::move(batch));
  }
  TrainSpec spec = testing::specs().at(before.config.model);
  testing::give_batches(spec, steps);
  spec.build.lr_schedule = [&](const TrainConfig&) {
    return [first = build_lr_schedule(before.config), second = build_lr_schedule(after.config)](int64_t step) {
      return step < kBefore ? first(step) : second(step);
    };
  };
  TrainSpecs list;
  list.add(spec);
  Logger log("", true);
  TrainConfig config = before.config;
  config.training.steps = before.steps + after.steps;
  Trainer(config, {.specs = list, .log = log}).run();
}

struct Change {
  const char* name;
  Overrides overrides;
  const char* words;
  int64_t first;  // sequence after the change
  int64_t rows;
  int64_t steps = kAfter;
};

const std::vector<Change> kChanges{
    {"MoreSequences", {{"training.global_batch_size", "8"}}, R"(["batch_size"])", kSequences, 8},
    {"FewerSequences", {{"training.global_batch_size", "2"}}, R"(["batch_size"])", kSequences, 2},
    {"ShorterSequences", {{"training.seq_len", "16"}}, R"(["seq_len"])", 2 * kSequences, 4},
    // 16 sequences of 32 tokens are ten of 48 and a part, which is not read again.
    {"LongerSequences", {{"training.seq_len", "48"}}, R"(["seq_len"])", 11, 4},
    {"OtherWeights", {{"data.datasets.1.weight", "3"}}, R"(["data"])", kSequences, 4},
    {"MoreSteps", {{"training.steps", "12"}}, R"(["steps"])", kSequences, 4, 12 - kBefore},
    {"FewerSteps", {{"training.steps", "6"}}, R"(["steps"])", kSequences, 4, 6 - kBefore},
    {"All",
     {{"training.global_batch_size", "6"},
      {"training.seq_len", "48"},
      {"data.seed", "9"},
      {"data.datasets.0.weight", "5"},
      {"training.steps", "8"}},
     R"(["batch_size", "seq_len", "data", "steps"])",
     11,
     6,
     8 - kBefore}};

class AllowedChanges : public ::testing::TestWithParam<Change> {};
INSTANTIATE_TEST_SUITE_P(Of, AllowedChanges, ::testing::ValuesIn(kChanges), [](const auto& one) {
  return std::string(one.param.name);
});

TEST_P(AllowedChanges, EqualARunOfTheSameSequencesBitForBit) {
  const Change& change = GetParam();
  const Folder folder, other;
  const auto before = testing::tiny_run(folder.path(), kRun);
  train(before, kBefore);
  const auto after = testing::tiny_run(
      folder.path(), joined(joined(kRun, change.overrides), {{"checkpoint.allow_changes", change.words}}));
  train(after);

  TrainConfig written = testing::tiny_run(other.path(), kRun);
  train_written_out({written, 0, 4, kBefore}, {after, change.first, change.rows, change.steps});
  written.training.steps = kBefore + change.steps;
  for (const char* key : {"loss", "lr", "num_tokens"}) {
    EXPECT_EQ(curve(after, key), curve(written, key)) << key;
  }
  for (const char* stem : {"model", "optimizer"}) {
    testing::expect_same_bits(
        testing::tensors(checkpoint(after, written.training.steps), stem),
        testing::tensors(checkpoint(written, written.training.steps), stem));
  }
  EXPECT_EQ(
      read_run_state(checkpoint(after, written.training.steps)).sequences_read,
      change.first + change.rows * change.steps);
}

TEST(Changes, ThatWereNotAllowedAreRefusedWithTheKeyAndTheWord) {
  const Folder folder;
  train(testing::tiny_run(folder.path(), kRun), kBefore);
  const auto refusal = [&](const Overrides& overrides) {
    return any_error::error_of([&] { train(testing::tiny_run(folder.path(), joined(kRun, overrides))); });
  };
  const auto names = [](const char* key, const std::string& word) {
    return AllOf(HasSubstr(key), HasSubstr("add \"" + word + "\" to checkpoint.allow_changes"));
  };
  EXPECT_THAT(refusal({{"training.global_batch_size", "8"}}), names("training.global_batch_size", "batch_size"));
  EXPECT_THAT(refusal({{"training.seq_len", "16"}}), names("training.seq_len", "seq_len"));
  EXPECT_THAT(refusal({{"data.datasets.1.weight", "3"}}), names("data: ", "data"));
  // Two long documents, of which both ways make as many sequences.
  EXPECT_THAT(
      refusal({{"data.packing", "whole"}}),
      AllOf(names("data.packing: ", "data"), HasSubstr("had \"concat\", the config says \"whole\"")));
  EXPECT_THAT(
      refusal({{"training.steps", "20"}}),
      AllOf(names("training.steps", "steps"), HasSubstr("spans 9 steps, with this config 20")));
  // Another word does not help, also if it makes the data differ.
  const std::pair<std::string, std::string> words{"checkpoint.allow_changes", R"(["batch_size", "seq_len", "steps"])"};
  EXPECT_THAT(refusal({words, {"training.seq_len", "16"}, {"data.datasets.1.weight", "3"}}), names("data: ", "data"));
  EXPECT_THAT(
      refusal({words, {"debug.seed", "7"}}),
      AllOf(HasSubstr("debug.seed: "), ::testing::Not(HasSubstr("allow_changes"))));
  EXPECT_THAT(
      refusal({{"checkpoint.allow_changes", R"(["batchsize"])"}}),
      HasSubstr("\"batchsize\" is not a setting that may change, did you mean \"batch_size\"?"));
}

// The schedule does not follow training.steps there.
TEST(Changes, OfTheStepsOfAScheduleOfItsOwnNeedNoWord) {
  const Folder folder;
  const Overrides fixed = joined(kRun, {{"lr_scheduler.total_steps", "9"}});
  train(testing::tiny_run(folder.path(), fixed), kBefore);
  EXPECT_EQ(train(testing::tiny_run(folder.path(), joined(fixed, {{"training.steps", "6"}}))).step, 6);
}

// A run that took over another's step, but not its schedule: this begins at the run's own first step.
TEST(Changes, OfTheStepsNameTheSpanOfAScheduleThatBeganLater) {
  const Folder folder, other;
  train(testing::tiny_run(folder.path(), kRun), kBefore);
  fs::copy(folder.path() / "out/checkpoints", other.path() / "source", fs::copy_options::recursive);
  const Overrides later = joined(
      kRun,
      {{"checkpoint.initial_load_path", '"' + (other.path() / "source/step-4").string() + '"'},
       {"checkpoint.initial_load_model_only", "false"},
       {"checkpoint.exclude_from_loading", R"(["lr_scheduler"])"}});
  train(testing::tiny_run(other.path(), later), kBefore + 2);
  const auto longer = [&](const Overrides& more) {
    return testing::tiny_run(other.path(), joined(joined(later, {{"training.steps", "12"}}), more));
  };
  EXPECT_THAT(
      [&] { train(longer({})); },
      ::testing::ThrowsMessage<Error>(
          AllOf(HasSubstr("spans 5 steps, with this config 8"), HasSubstr("set lr_scheduler.total_steps = 5"))));
  train(longer({{"lr_scheduler.total_steps", "5"}}));
  const Folder whole;
  train(testing::tiny_run(whole.path(), later));
  const auto rates = [](const Folder& of) { return metric::read_metric(of.path() / "out/metrics.jsonl", "lr").values; };
  const auto advised = rates(other), wanted = rates(whole);
  ASSERT_GE(advised.size(), wanted.size());
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), advised.begin()));
}

// Data of 56 sequences.
Overrides finite_run(const Folder& folder) {
  write_file_atomically(folder.path() / "short.txt", std::string(1800, 'a'));
  return joined(
      kRun,
      {{"data.datasets", "[{path = \"" + (folder.path() / "short.txt").string() + "\"}]"},
       {"data.repeat", "false"},
       {"data.validation_fraction", "0"},
       {"training.steps", "1000"}});
}

TEST(Changes, OfStepsBeyondTheEndOfTheDataNeedNoWord) {
  const Folder folder;
  train(testing::tiny_run(folder.path(), finite_run(folder)), 5);
  const auto longer = joined(finite_run(folder), {{"training.steps", "2000"}});
  EXPECT_EQ(train(testing::tiny_run(folder.path(), longer)).step, 14);
}

// A new run with the larger batch would have 7 steps.
TEST(Changes, OfTheBatchSizeFitAScheduleThatANewRunWouldNot) {
  const Folder folder;
  const auto finite = joined(finite_run(folder), {{"lr_scheduler.warmup_steps", "9"}});
  train(testing::tiny_run(folder.path(), finite), 5);
  const Overrides larger{{"training.global_batch_size", "8"}, {"checkpoint.allow_changes", R"(["batch_size"])"}};
  EXPECT_EQ(train(testing::tiny_run(folder.path(), joined(finite, larger))).step, 9);
}

TEST(Changes, OfTheBatchSizeReadFiniteDataToItsEnd) {
  const Folder folder;
  const Overrides finite = finite_run(folder);
  EXPECT_EQ(train(testing::tiny_run(folder.path(), finite), 5).step, 5);
  const auto after = testing::tiny_run(
      folder.path(),
      joined(finite, {{"training.global_batch_size", "8"}, {"checkpoint.allow_changes", R"(["batch_size"])"}}));
  EXPECT_EQ(train(after).step, 9) << "of 56 sequences, 36 were left";
  EXPECT_EQ(read_run_state(checkpoint(after, 9)).sequences_read, 20 + 4 * 8);
}

TEST(Changes, AreAllowedForTheStateOfAnotherRunToo) {
  const Folder folder, other;
  const auto first = testing::tiny_run(folder.path(), kRun);
  train(first, kBefore);
  const Overrides larger{{"training.global_batch_size", "8"}, {"checkpoint.allow_changes", R"(["batch_size"])"}};
  fs::copy(folder.path() / "out/checkpoints", other.path() / "source", fs::copy_options::recursive);
  const auto resumed = testing::tiny_run(folder.path(), joined(kRun, larger));
  train(resumed);
  const auto taken = testing::tiny_run(
      other.path(),
      joined(
          joined(kRun, larger),
          {{"checkpoint.initial_load_path", '"' + (other.path() / "source/step-4").string() + '"'},
           {"checkpoint.initial_load_model_only", "false"}}));
  train(taken);
  testing::expect_same_bits(
      testing::tensors(checkpoint(taken, 9), "model"), testing::tensors(checkpoint(resumed, 9), "model"));
}

// Returns the standard error of a run that resumes with `overrides` after kBefore steps.
std::string report_after(const Overrides& first, const Overrides& overrides) {
  const Folder folder;
  train(testing::tiny_run(folder.path(), joined(kRun, first)), kBefore);
  const auto after = testing::tiny_run(folder.path(), joined(kRun, overrides));
  const TrainSpecs list = testing::specs();
  ::testing::internal::CaptureStderr();
  Logger log;
  const Trainer trainer(after, {.specs = list, .log = log});
  return ::testing::internal::GetCapturedStderr();
}

TEST(Changes, OfLearningRatesAreLogged) {
  const auto with_group = [](const std::string& rate) {
    return Overrides{{"optimizer.lr", "0.001"}, {"optimizer.param_groups", "[{pattern = \"norm\", " + rate + "}]"}};
  };
  const Overrides half = with_group("lr_multiplier = 0.5");
  EXPECT_THAT(
      report_after({{"optimizer.lr", "0.001"}}, {{"optimizer.lr", "0.0003"}}),
      AllOf(
          HasSubstr("changed: optimizer.lr: 0.001 so far, 0.0003 from here on"),
          ::testing::Not(HasSubstr("changed: the data"))));
  EXPECT_THAT(
      report_after(half, with_group("lr = 0.25")),
      HasSubstr("changed: optimizer.lr and those of its param_groups: 0.001, 0.0005 so far, 0.001, 0.25 from here on"));
  EXPECT_THAT(report_after(half, half), ::testing::Not(HasSubstr("changed: ")));
}

TEST(Changes, OnAMeshEqualOneDevice) {
  const Overrides run = joined(
      joined(testing::family("qwen3"), kRun),
      {{"training.steps", "8"}, {"lr_scheduler.total_steps", "8"}, {"checkpoint.interval", "8"}});
  const Overrides changes{
      {"training.global_batch_size", "16"},
      {"training.seq_len", "48"},
      {"data.datasets.1.weight", "3"},
      {"checkpoint.allow_changes", R"(["batch_size", "seq_len", "data"])"}};
  const Folder source;
  train(testing::tiny_run(source.path(), run), kBefore);
  const auto resumed = [&](const Folder& folder) {
    fs::copy(source.path() / "out", folder.path() / "out", fs::copy_options::recursive);
    return testing::tiny_run(folder.path(), joined(run, changes));
  };
  const Folder one;
  const auto alone = resumed(one);
  train(alone);
  const auto wanted = testing::outcome_of(alone);
  for (const testing::Mesh& mesh :
       {testing::Mesh{.dp_shard = 2, .tp = 2},
        testing::Mesh{.dp_replicate = 2, .cp = 2},
        testing::Mesh{.dp_shard = 2, .pp = 2}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = resumed(folder);
    testing::train_on(mesh, config);
    testing::expect_equal(wanted, testing::outcome_of(config));
  }
}

// An absent key is token 1 for the class of transformers, and earlier versions left out that there is none.
TEST(Changes, AConfigWithoutAPaddingTokenIsThatOfAModelWithoutOne) {
  const Folder folder;
  const auto families = testing::families();
  const auto& family = families.at("olmo2");
  const auto args = family.from_flavor("debugmodel");
  args->set_special_tokens({}, 2, {});
  const Node now = args->to_hf_config("float32");
  ASSERT_TRUE(now.at("pad_token_id").is_null());
  for (const char* pad : {"", ",\"pad_token_id\":1"}) {
    std::string text = to_json(now);
    const std::string key = ",\"pad_token_id\":null";
    ASSERT_NE(text.find(key), std::string::npos) << text;
    text.replace(text.find(key), key.size(), pad);
    std::ofstream(folder.path() / "config.json") << text;
    const auto compare = [&] { require_same_shape(folder.path() / "config.json", family, now, "keep it"); };
    if (*pad == 0) {
      EXPECT_NO_THROW(compare());
    } else {
      EXPECT_THAT(error_of(compare), HasSubstr("pad_token_id = 1, now null"));
    }
  }
}

TEST(RunState, OfAnOlderCheckpointHasItsPositionInSteps) {
  const Folder folder;
  write_file_atomically(
      folder.path() / "trainer.json",
      R"({"step": 5, "num_tokens": 9, "skipped": 0, "data_ahead": -2, "seed": 1, "rows_per_step": 4, "seq_len": 32})");
  const RunState state = read_run_state(folder.path());
  EXPECT_EQ(state.sequences_read, (5 - 2) * 4);
  EXPECT_EQ(state.schedule_steps, 0);
  EXPECT_TRUE(state.learning_rates.empty());
}

}  // namespace
}  // namespace lehr::train

#include "lehr/train/trainer.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/state/weights.h"
#include "test/base/error_of.h"
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
using testing::train;

TEST(Trainer, LearnsAndWritesItsOutputs) {
  const Folder folder;
  const auto config =
      tiny_run(folder.path(), {{"training.steps", "60"}, {"optimizer.lr", "0.01"}, {"checkpoint.interval", "30"}});
  const TrainResult result = train(config);
  EXPECT_EQ(result.step, 60);
  const auto out = std::filesystem::path(config.job.dump_folder);
  const auto losses = metric::read_metric(out / "metrics.jsonl", "loss");
  ASSERT_EQ(losses.values.size(), 60U);
  EXPECT_LT(losses.values.back(), losses.values.front() - 1.5);  // from ln 257 = 5.5 to about the unigram entropy
  EXPECT_FALSE(metric::read_metric(out / "metrics.jsonl", "validation_loss").values.empty());
  // Four sequences of 32 tokens per step; every token has a label.
  EXPECT_EQ(metric::read_metric(out / "metrics.jsonl", "num_tokens").values.back(), 60 * 4 * 32);
  for (const char* file :
       {"config.toml",
        "loss.svg",
        "checkpoints/step-60/config.json",
        "checkpoints/step-60/model.safetensors",
        "checkpoints/step-60/optimizer.safetensors",
        "checkpoints/step-60/trainer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(out / file)) << file;
  }
}

TEST(Trainer, SaysThatACompleteRunHasNoStepsLeft) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"training.steps", "2"}});
  train(config);
  ::testing::internal::CaptureStderr();
  Logger log;
  const auto list = testing::specs();
  Trainer(config, {.specs = list, .log = log}).run();
  const std::string report = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(report, HasSubstr("run        complete: all 2 steps are done in "));
  EXPECT_THAT(report, ::testing::Not(HasSubstr("goodput")));
}

TEST(Trainer, ACompleteRunKeepsTheConfigOfItsSteps) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"training.steps", "2"}});
  train(config);
  const auto path = std::filesystem::path(config.job.dump_folder) / "config.toml";
  write_file_atomically(path, "# a note of the user\n" + read_file(path));
  const std::string saved = read_file(path);
  ::testing::internal::CaptureStderr();
  Logger log;
  const auto list = testing::specs();
  const auto other = tiny_run(folder.path(), {{"training.steps", "2"}, {"optimizer.lr", "0.5"}});
  Trainer(config, {.specs = list, .log = log}).run();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::Not(HasSubstr("keeps the settings")));
  ::testing::internal::CaptureStderr();
  Trainer(other, {.specs = list, .log = log}).run();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(), HasSubstr("config.toml keeps the settings of the complete run"));
  EXPECT_EQ(read_file(path), saved);
}

// All files of a run are bit-identical, whether it was stopped and resumed or not.
TEST(Trainer, StoppedAndResumedEqualsNeverStoppedBitForBit) {
  const Folder whole;
  const Folder parts;
  const Overrides overrides{{"training.mixed_precision_param", "bfloat16"}};
  const auto once = tiny_run(whole.path(), overrides);
  train(once);
  const auto twice = tiny_run(parts.path(), overrides);
  EXPECT_TRUE(train(twice, 5).stopped);
  EXPECT_TRUE(train(twice, 3).stopped);
  EXPECT_EQ(train(twice).step, 12);
  expect_same_bits(tensors(checkpoint(once, 12), "model"), tensors(checkpoint(twice, 12), "model"));
  expect_same_bits(tensors(checkpoint(once, 12), "optimizer"), tensors(checkpoint(twice, 12), "optimizer"));
  for (const char* key : {"loss", "grad_norm", "lr", "validation_loss"}) {
    const auto a = metric::read_metric(std::filesystem::path(once.job.dump_folder) / "metrics.jsonl", key);
    const auto b = metric::read_metric(std::filesystem::path(twice.job.dump_folder) / "metrics.jsonl", key);
    EXPECT_EQ(a.steps, b.steps) << key;
    EXPECT_EQ(a.values, b.values) << key;
  }
}

TEST(Trainer, StepByStepEqualsAWholeRunBitForBit) {
  const Folder whole;
  const Folder stepped;
  const auto once = tiny_run(whole.path());
  train(once);
  const auto twice = tiny_run(stepped.path());
  const TrainSpecs list = testing::specs();
  Logger log("", /*quiet=*/true);
  Trainer trainer(twice, {.specs = list, .log = log});
  EXPECT_THAT([&] { trainer.step(); }, Throws<Error>()) << "before begin()";
  trainer.begin();
  int64_t steps = 0;
  while (trainer.step()) {
    ++steps;
  }
  EXPECT_FALSE(trainer.step());
  EXPECT_EQ(steps, 12);
  EXPECT_EQ(trainer.finish().step, 12);
  expect_same_bits(tensors(checkpoint(once, 12), "model"), tensors(checkpoint(twice, 12), "model"));
}

TEST(Trainer, UnlocksItsFolderWhenItHasFinished) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"training.steps", "3"}, {"validation.enable", "false"}});
  const TrainSpecs list = testing::specs();
  Logger log("", /*quiet=*/true);
  Trainer first(config, {.specs = list, .log = log});
  EXPECT_THAT([&] { Trainer(config, {.specs = list, .log = log}); }, Throws<Error>());
  first.run();
  Trainer second(config, {.specs = list, .log = log});
  EXPECT_EQ(second.run().step, 3);
}

TEST(Trainer, SavesOnRequestAfterAnyStep) {
  const Folder folder;
  const auto config = tiny_run(folder.path());
  const TrainSpecs list = testing::specs();
  Logger log("", /*quiet=*/true);
  {
    Trainer trainer(config, {.specs = list, .log = log});
    trainer.begin();
    trainer.step();
    trainer.save_now();
    EXPECT_TRUE(std::filesystem::exists(checkpoint(config, 1) / "model.safetensors"));
  }
  Trainer resumed(config, {.specs = list, .log = log});
  resumed.begin();
  resumed.step();
  EXPECT_EQ(resumed.finish().step, 2);
}

TEST(Trainer, RefusesToSaveOnRequestWithoutCheckpoints) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"checkpoint.enable", "false"}});
  const TrainSpecs list = testing::specs();
  Logger log("", /*quiet=*/true);
  Trainer trainer(config, {.specs = list, .log = log});
  trainer.begin();
  EXPECT_THAT([&] { trainer.save_now(); }, ::testing::ThrowsMessage<Error>(HasSubstr("checkpoint.enable")));
}

// In float64, so that only rounding (1e-12 relative) is left between different micro-batch sizes.
TEST(Trainer, MicrobatchSizeDoesNotChangeTheLoss) {
  std::vector<std::vector<double>> runs;
  for (const char* rows : {"1", "2", "4"}) {
    const Folder folder;
    const auto config = tiny_run(folder.path(), {{"training.local_batch_size", rows}, {"training.dtype", "float64"}});
    train(config);
    runs.push_back(metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "loss").values);
  }
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_NEAR(runs[0][i], runs[1][i], 1e-12 * runs[0][i]);
    EXPECT_NEAR(runs[0][i], runs[2][i], 1e-12 * runs[0][i]);
  }
}

TEST(Trainer, ActivationCheckpointingChangesNoLoss) {
  std::vector<std::vector<double>> runs;
  using Option = std::pair<const char*, const char*>;
  for (const auto& [mode, option] :
       {Option("none", "\"2\""),
        Option("full", "\"2\""),
        Option("selective", "\"2\""),
        Option("selective", "\"op\""),
        Option("selective", "\"op 2\"")}) {
    const Folder folder;
    const auto config = tiny_run(
        folder.path(),
        {{"activation_checkpoint.mode", mode},
         {"activation_checkpoint.selective_ac_option", option},
         {"training.dtype", "float64"}});
    train(config);
    runs.push_back(metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "loss").values);
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i], runs[0]) << "option " << i;
  }
}

TEST(Trainer, RecomputesMatmulsOfEverySecondLayerIfNothingElseIsChosen) {
  const auto policy = ActivationCheckpointConfig().policy();
  EXPECT_EQ(policy.every, 2);
  EXPECT_TRUE(policy.matmuls_only);
}

TEST(Trainer, KeepsTheLatestCheckpointsOnly) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"checkpoint.interval", "2"}, {"checkpoint.keep_latest_k", "2"}});
  train(config);
  EXPECT_FALSE(std::filesystem::exists(checkpoint(config, 8)));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(config, 10)));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(config, 12)));
}

// The file would still be valid, and the run would read other sequences.
TEST(Trainer, AFlippedDigitOfItsStateIsDamage) {
  const Folder folder;
  const auto config = tiny_run(folder.path());
  train(config);
  const auto damaged = checkpoint(config, 12);
  std::string text = read_file(damaged / "trainer.json");
  const size_t digit = text.find_first_of("0123456789", text.find("sequences_read"));
  ASSERT_NE(digit, std::string::npos);
  text[digit] ^= 1;
  write_file_atomically(damaged / "trainer.json", text);
  train(config);
  EXPECT_TRUE(std::filesystem::exists(damaged.string() + ".damaged"));
  EXPECT_TRUE(std::filesystem::exists(damaged)) << "the steps after the checkpoint before are done again";
}

TEST(Trainer, RefusesToResumeWithAnotherModelShapeOrDataOrder) {
  const Folder folder;
  train(tiny_run(folder.path(), {{"training.steps", "4"}}));
  auto resume = [&](const char* key, const char* value) {
    return [&folder, key, value] { train(tiny_run(folder.path(), {{key, value}})); };
  };
  EXPECT_THAT(
      resume("model.args.hidden_size", "32"),
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("hidden_size = 16, now 32"))));
  EXPECT_THAT(resume("debug.seed", "7"), Throws<Error>(::testing::Property(&Error::what, HasSubstr("debug.seed"))));
  EXPECT_THAT(
      resume("training.seq_len", "16"),
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("training.seq_len"))));
  EXPECT_THAT(
      resume("checkpoint.load_step", "3"), Throws<Error>(::testing::Property(&Error::what, HasSubstr("step 3"))));
}

TEST(Trainer, LocksItsFolderAgainstASecondRun) {
  const Folder folder;
  const auto config = tiny_run(folder.path());
  Logger log("", true);
  const auto list = testing::specs();
  {
    const Trainer first(config, {.specs = list, .log = log, .stop_requested = {}});
    EXPECT_THAT([&] { train(config); }, Throws<Error>(::testing::Property(&Error::what, HasSubstr("another run"))));
  }
  EXPECT_EQ(train(config).step, 12);
}

// The run starts with the weights of the other run bit for bit, and nothing else: at step 1, with a new optimizer
// state.
TEST(Trainer, StartsFromTheWeightsOfAnotherRun) {
  const Folder first;
  const auto source = tiny_run(first.path(), {{"training.steps", "4"}});
  train(source);
  const Folder second;
  const auto path = "\"" + checkpoint(source, 4).string() + "\"";
  const auto config = tiny_run(
      second.path(), {{"checkpoint.initial_load_path", path}, {"training.steps", "2"}, {"checkpoint.interval", "1"}});
  Logger log("", true);
  const auto list = testing::specs();
  // The trainers of the finished run and of the new run hold the same weights.
  Trainer finished(source, {.specs = list, .log = log});
  Trainer trainer(config, {.specs = list, .log = log});
  const auto wanted = nn::named_parameters(finished.model());
  const auto found = nn::named_parameters(trainer.model());
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i].parameter->value(), wanted[i].parameter->value())) << found[i].name;
  }
  EXPECT_EQ(trainer.run().step, 2);
  const auto log_of = [](const TrainConfig& run) {
    return metric::read_metric(std::filesystem::path(run.job.dump_folder) / "metrics.jsonl", "loss");
  };
  EXPECT_EQ(log_of(config).steps, (std::vector<double>{1, 2}));
  for (const auto& [name, tensor] : tensors(checkpoint(config, 2), "optimizer")) {
    if (name.ends_with(".step")) {
      EXPECT_EQ(tensor.item<int64_t>(), 2) << name;
    }
  }
  // Both runs read the same sequences first.
  EXPECT_LT(log_of(config).values.front(), log_of(source).values.front());
}

TEST(Trainer, NotifiesSubscribersOfEveryEvent) {
  const Folder folder;
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(tiny_run(folder.path()), {.specs = list, .log = log, .stop_requested = {}});
  std::map<Event, int> seen;
  for (const Event event :
       {Event::ready,
        Event::step_begin,
        Event::step_end,
        Event::validation_end,
        Event::checkpoint_requested,
        Event::finished}) {
    trainer.events().subscribe(event, [&seen, event](const EventContext& context) {
      ++seen[event];
      EXPECT_NE(context.model, nullptr);
    });
  }
  trainer.run();
  EXPECT_EQ(seen[Event::ready], 1);
  EXPECT_EQ(seen[Event::step_begin], 12);
  EXPECT_EQ(seen[Event::step_end], 12);
  EXPECT_EQ(seen[Event::validation_end], 2);
  EXPECT_EQ(seen[Event::checkpoint_requested], 3);
  EXPECT_EQ(seen[Event::finished], 1);
}

TEST(TrainSpecs, BuildersCanBeReplacedSeparately) {
  const Folder folder;
  std::vector<std::string> called;
  TrainSpec spec{.family = model::qwen3_dense_family()};
  spec.build.tokenizer = [&](const TrainConfig& config) {
    called.emplace_back("tokenizer");
    return build_tokenizer(config);
  };
  spec.build.model_args =
      [&](const TrainConfig& config, const descriptor::ModelFamily& family, const data::Tokenizer& tokenizer) {
        auto args = build_model_args(config, family, tokenizer);
        descriptor::ModelOverrides wider;
        wider.hidden_size = 24;
        args->apply(wider);
        return args;
      };
  spec.build.task = [&](const TrainConfig& config) {
    called.emplace_back("task");
    return build_task(config);
  };
  spec.build.lr_schedule = [](const TrainConfig&) { return [](int64_t step) { return step < 6 ? 1.0 : 0.0; }; };
  spec.build.validate =
      [&](nn::Model& model, const TrainTask& task, BatchStream& stream, const ValidateOptions& options) {
        auto result = validate(model, task, stream, options);
        result.loss = 7;
        return result;
      };
  TrainSpecs list;
  list.add(spec);
  Logger log("", true);
  const auto config = tiny_run(folder.path());
  Trainer trainer(config, {.specs = list, .log = log});
  EXPECT_EQ(called, (std::vector<std::string>{"tokenizer", "task"}));
  EXPECT_EQ(nn::named_parameters(trainer.model()).front().parameter->shape().back(), 24);
  std::vector<double> rates;
  trainer.events().subscribe(
      Event::step_end, [&](const EventContext& context) { rates.push_back(context.metrics->at("lr")); });
  EXPECT_EQ(trainer.run().validation_loss, 7);
  EXPECT_EQ(rates.front(), config.optimizer.lr);
  EXPECT_EQ(rates.back(), 0);
}

TEST(TrainSpecs, RefuseADuplicateNameAndSuggestTheNearest) {
  auto list = testing::specs();
  EXPECT_THROW(list.add(model::llama3_family()), Error);
  auto config = tiny_run(Folder().path());
  config.model.name = "qwen3_mo";
  EXPECT_THAT(any_error::error_of([&] { list.at(config.model); }), HasSubstr("did you mean 'qwen3_moe'"));
}

TEST(TrainSpecs, RefuseANameBesideAFolderOfAnotherFamily) {
  const Folder folder;
  const auto run = tiny_run(folder.path(), {{"training.steps", "2"}, {"validation.enable", "false"}});
  train(run);
  const std::string path = checkpoint(run, 2).string();
  const auto list = testing::specs();
  ModelConfig config{.name = "llama3", .hf_assets_path = path};
  EXPECT_THAT(
      [&] { list.at(config); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
          "model.name: \"llama3\" conflicts with model.hf_assets_path, which defines the family too: " + path +
          " is a \"qwen3\"")));
  config.name = "qwen3";
  EXPECT_EQ(list.at(config).family.name, "qwen3");
}

TEST(Trainer, EndsWithFiniteDataAndSavesACheckpoint) {
  const Folder folder;
  write_file_atomically(folder.path() / "short.txt", std::string(1500, 'a') + std::string(500, 'b'));
  const auto config = tiny_run(
      folder.path(),
      {{"data.datasets.0.path", "\"" + (folder.path() / "short.txt").string() + "\""},
       {"data.repeat", "false"},
       {"data.validation_fraction", "0.1"},
       {"training.steps", "1000"}});
  const TrainResult result = train(config);
  EXPECT_EQ(result.step, 14) << "1800 bytes give 56 rows, 4 a step";
  EXPECT_TRUE(result.validation_loss.has_value());
  EXPECT_TRUE(std::filesystem::exists(checkpoint(config, 14)));
}

TEST(Trainer, RefusesToResumeWithOtherDataOrAnotherModelOfTheSameShape) {
  const Folder folder;
  train(tiny_run(folder.path(), {{"training.steps", "4"}}));
  const auto error = [&](const char* key, const char* value) {
    return [&folder, key, value] { train(tiny_run(folder.path(), {{key, value}})); };
  };
  EXPECT_THAT(
      error("data.seed", "7"), Throws<Error>(::testing::Property(&Error::what, HasSubstr("read different data"))));
  EXPECT_THAT(
      error("data.validation_fraction", "0.01"),
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("read different data"))));
  EXPECT_THAT(
      error("model.args.rope_theta", "77"), Throws<Error>(::testing::Property(&Error::what, HasSubstr("rope_theta"))));
  EXPECT_THAT(
      error("training.dtype", "\"bfloat16\""),
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("torch_dtype"))));
}

// The weights of a Mistral model fit a Llama of the same sizes.
TEST(Trainer, RefusesToResumeAsAnotherFamily) {
  const Folder folder;
  train(tiny_run(folder.path(), {{"model.name", "mistral"}, {"training.steps", "4"}}));
  EXPECT_THAT(
      [&] {
        train(tiny_run(folder.path(), {{"model.name", "llama3"}, {"training.steps", "8"}}));
      },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr(R"(model_type = "mistral", now "llama")"))));
}

TEST(Trainer, ResumesWhenEveryUpdateWasSkipped) {
  class NotFinite : public CausalLMTask {
   public:
    at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
      return CausalLMTask::compute_loss(outputs, batch) * std::numeric_limits<double>::quiet_NaN();
    }
  };
  TrainSpec spec{.family = model::qwen3_dense_family()};
  spec.build.task = [](const TrainConfig&) { return std::make_unique<NotFinite>(); };
  TrainSpecs list;
  list.add(spec);
  Logger log("", true);
  const Folder folder;
  const Overrides skip = {{"training.non_finite", "skip"}, {"validation.enable", "false"}};
  auto half = skip;
  half.emplace_back("training.steps", "6");
  EXPECT_EQ(Trainer(tiny_run(folder.path(), half), {.specs = list, .log = log}).run().step, 6);
  auto more = skip;
  more.emplace_back("checkpoint.allow_changes", R"(["steps"])");
  const auto config = tiny_run(folder.path(), more);
  EXPECT_EQ(Trainer(config, {.specs = list, .log = log}).run().step, 12);
  const auto skipped =
      metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "skipped").values;
  ASSERT_EQ(skipped.size(), 12U);
  EXPECT_EQ(skipped.back(), 12);
}

TEST(Trainer, DoesNotSaveNonFiniteWeights) {
  const Folder folder;
  const auto config = tiny_run(
      folder.path(), {{"optimizer.lr", "1e38"}, {"lr_scheduler.warmup_steps", "0"}, {"checkpoint.interval", "1"}});
  EXPECT_THAT(
      [&] { train(config); }, Throws<Error>(::testing::Property(&Error::what, HasSubstr("is not finite any more"))));
  EXPECT_FALSE(std::filesystem::exists(checkpoint(config, 1)));
}

TEST(Trainer, RefusesASampleThatExceedsThePositionsBeforeTraining) {
  const Folder folder;
  EXPECT_THAT(
      [&] {
        train(tiny_run(
            folder.path(),
            {{"sample.prompt", "\"To be\""},
             {"sample.max_new_tokens", "100"},
             {"model.args.max_position_embeddings", "64"}}));
      },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("sample.max_new_tokens"))));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out" / "metrics.jsonl"));
}

// A model large enough that its memory is reported: 20.5 M parameters, nearly all of them in a table.
TEST(Trainer, ReportsTheMemoryOfAStepAndOfSaves) {
  const Folder folder;
  const auto config =
      tiny_run(folder.path(), {{"model.args.vocab_size", "1280000"}, {"model.args.tie_word_embeddings", "true"}});
  ::testing::internal::CaptureStderr();
  Logger log;
  const auto list = testing::specs();
  Trainer trainer(
      config, {.specs = list, .log = log, .forecast = [](const auto&...) { return StepForecast{.peak = 3LL << 30}; }});
  const auto parameters = static_cast<double>(nn::count_parameters(trainer.model()));
  const std::string report = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(report, HasSubstr("3 GiB of tensors at most in a step, of which "));
  EXPECT_THAT(report, HasSubstr("; " + human_bytes(3 * 4 * parameters) + " more from the first save on"));
}

TEST(Trainer, ASaveThatFailedIsTriedAgain) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"checkpoint.interval", "100"}});
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = log});
  const auto checkpoints = checkpoint(config, 0).parent_path();
  std::filesystem::create_directories(checkpoints.parent_path());
  write_file_atomically(checkpoints, "a file where the folder of checkpoints should be");
  trainer.begin();
  EXPECT_THROW(trainer.save_now(), std::exception);
  std::filesystem::remove(checkpoints);
  trainer.save_now();
  EXPECT_TRUE(std::filesystem::exists(checkpoint(config, 0) / "trainer.json"));
}

TEST(Trainer, ReturnsToAStepOnceAndKeepsLaterCheckpoints) {
  const Folder folder;
  train(tiny_run(folder.path(), {{"checkpoint.keep_latest_k", "0"}}));
  const auto back = tiny_run(folder.path(), {{"checkpoint.load_step", "4"}, {"checkpoint.keep_latest_k", "0"}});
  train(back, /*stop_after=*/5);
  EXPECT_TRUE(std::filesystem::exists(checkpoint(back, 12).string() + ".aside"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(back, 9))) << "saved by the stop";
  int64_t first = 0;
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(back, {.specs = list, .log = log, .stop_requested = {}});
  trainer.events().subscribe(
      Event::step_begin, [&](const EventContext& context) { first = first == 0 ? context.step : first; });
  trainer.run();
  EXPECT_EQ(first, 10) << "the same command goes on from the stop";
}

TEST(Trainer, RefusesAFolderWithCheckpointsOfAnEarlierRunThatItWouldNotResume) {
  const Folder folder;
  const auto first = tiny_run(folder.path(), {{"training.steps", "3"}, {"validation.enable", "false"}});
  train(first);
  const auto file = std::filesystem::path(first.job.dump_folder) / "metrics.jsonl";
  const std::string metrics = read_file(file);
  for (const auto& [key, value] : {std::pair("checkpoint.folder", "again"), std::pair("checkpoint.enable", "false")}) {
    const auto second = tiny_run(folder.path(), {{key, value}});
    const std::string message =
        std::string(key) + ": " + first.job.dump_folder + "/checkpoints holds checkpoints of an earlier run, which";
    EXPECT_THAT([&] { train(second); }, ::testing::ThrowsMessage<Error>(HasSubstr(message)));
  }
  EXPECT_EQ(read_file(file), metrics);
  std::filesystem::rename(
      checkpoint(first, 3).parent_path(), checkpoint(first, 3).parent_path().parent_path() / "again");
  EXPECT_EQ(train(tiny_run(folder.path(), {{"checkpoint.folder", "again"}, {"training.steps", "3"}})).step, 3);
}

TEST(Trainer, RefusesFoldersOutsideOfItsOwn) {
  const Folder folder;
  for (const auto& one :
       {std::pair("checkpoint.folder", "checkpoints"),
        std::pair("metrics.save_tb_folder", "tensorboard"),
        std::pair("profiling.save_traces_folder", "profile")}) {
    for (const char* outside : {"../shared", "a/../../b", "/tmp/checkpoints"}) {
      EXPECT_THAT(
          [&] {
            tiny_run(folder.path(), {{one.first, outside}});
          },
          ::testing::ThrowsMessage<Error>(HasSubstr(fmt::format(
              "{}: expected a folder inside job.dump_folder, such as \"{}\", found \"{}\"; to write elsewhere, set "
              "job.dump_folder",
              one.first,
              one.second,
              outside))));
    }
  }
  EXPECT_EQ(tiny_run(folder.path(), {{"checkpoint.folder", "a/..b"}}).checkpoint.folder, "a/..b");
}

}  // namespace
}  // namespace lehr::train

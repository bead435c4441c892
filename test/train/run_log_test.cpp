// The speed that a run reports: tokens per second and the share of the peak, on one rank and on several.
#include "lehr/train/run_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include "lehr/mesh/fake_transport.h"
#include "lehr/train/model_counts.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::Mesh;
using testing::tiny_run;

constexpr int64_t kBatchSize = 8;  // of a step, over all ranks
constexpr int64_t kSequence = 32;

struct Case {
  int64_t world_size = 1;
  double peak_flops = 0;  // of all ranks
  std::chrono::milliseconds before_first_step{0};
  int64_t documents = 1;  // per sequence
  std::function<void(RunLog&)> at_the_end = [](RunLog&) {};
  std::function<void(RunLog&, const std::function<void()>& step)> drive = {};  // instead of three steps
  bool quiet = true;
};
struct Logged {
  double flops_per_token = 0;                        // of the model, for whole sequences
  std::vector<std::map<std::string, double>> steps;  // metrics
};

// Logs three of twelve steps, as the first rank does.
Logged logged_steps(const Case& one) {
  const Folder folder;
  const TrainConfig config = tiny_run(
      folder.path(),
      {{"training.global_batch_size", std::to_string(kBatchSize)},
       {"training.seq_len", std::to_string(kSequence)},
       {"training.steps", "12"},
       {"validation.freq", "5"},
       {"checkpoint.interval", "4"}});
  const auto tokenizer = build_tokenizer(config);
  const auto list = testing::specs();
  const auto args = build_model_args(config, list.at(config.model).family, *tokenizer);
  const auto model = args->build({});
  const auto optimizer = testing::default_optimizer(*model);
  const auto transport = mesh::fake_transport(0, one.world_size);
  const Ranks ranks(config.parallelism, transport.get());
  Logged logged{
      .flops_per_token = static_cast<double>(args->get_nparams_and_flops(kSequence).causal_flops_per_token),
      .steps = {}};

  Logger logger("", one.quiet);
  RunState state;
  RunLog log(
      config,
      *args,
      count_model(config, *args, list.at(config.model).build),
      *model,
      peft::count_trainable(*model),
      *optimizer,
      at::kCPU,
      ranks,
      state,
      logger,
      one.peak_flops);
  std::this_thread::sleep_for(one.before_first_step);
  const auto end_step = [&] {
    ++state.step;
    StepResult result;
    result.updated = true;
    result.work = {
        .valid = 1,
        .tokens = kBatchSize * kSequence,
        .attention_pairs = kBatchSize * kSequence * kSequence / 2 / one.documents};
    logged.steps.push_back(log.step_ended(state, result, /*learning_rate=*/0.1));
  };
  if (one.drive) {
    one.drive(log, end_step);
    return logged;
  }
  while (state.step < 3) {
    log.step_begins(state.step + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    end_step();
  }
  one.at_the_end(log);
  return logged;
}

// The same few numbers in another order: 1e-12 is a safe bound for their rounding.
void expect_near(double found, double wanted) {
  EXPECT_NEAR(found, wanted, 1e-12 * wanted);
}

// 1e15: far beyond what is reached here. 1: exceeded, which must be visible and not raise the peak.
TEST(RunLog, ReportsTheShareOfThePeakAsItIs) {
  for (const double peak_flops : {1e15, 1.0}) {
    for (const int64_t world_size : {1, 4}) {
      double seconds = 0;
      double tokens = 0;
      const Logged logged = logged_steps({.world_size = world_size, .peak_flops = peak_flops});
      for (const auto& metrics : logged.steps) {
        seconds += metrics.at("step_seconds");
        tokens += kBatchSize * kSequence;
        expect_near(metrics.at("tokens_per_second"), tokens / seconds);
        expect_near(metrics.at("mfu"), logged.flops_per_token * tokens / seconds / peak_flops);
      }
    }
  }
}

TEST(RunLog, LeavesTheStartOfARunOutOfItsFirstStep) {
  const auto begin = std::chrono::steady_clock::now();
  const Logged logged = logged_steps({.before_first_step = std::chrono::milliseconds(300)});
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(logged.steps.front().at("step_seconds"), all.count() - 0.3);
}

// After step 3 of 12 there are validations after steps 5, 10 and 12 and saves after 4, 8 and 12; after step 12, its
// own.
TEST(RunLog, ExpectsTheValidationsAndSavesThatAreDue) {
  const auto pause = [](RunLog& log, RunLog::Pause reason, int milliseconds) {
    log.pause(reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    log.resume();
  };
  logged_steps({.at_the_end = [&](RunLog& log) {
    const double steps = log.seconds_left(3);
    EXPECT_GT(steps, 9 * 0.001);
    pause(log, RunLog::Pause::validation, 200);
    const double validation = (log.seconds_left(3) - steps) / 3;
    EXPECT_GE(validation, 0.2 - 1e-9);
    pause(log, RunLog::Pause::save, 100);
    const double save = (log.seconds_left(3) - steps) / 3 - validation;
    EXPECT_GE(save, 0.1 - 1e-9);
    EXPECT_NEAR(log.seconds_left(12), validation + save, 1e-9);
  }});
}

// A run of sleeps, with the log called as a trainer calls it. Compares the time left after each step with a clock of
// the test's own. Sleeps are exact unless the machine is busy; then the run is repeated.
double worst_error_of_time_left(const std::optional<double>& write_milliseconds) {
  constexpr int kSteps = 12, kStep = 30, kValidation = 90, kSave = 60;  // milliseconds
  const auto sleep = [](double milliseconds) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  };
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  std::vector<std::pair<double, double>> told;  // when, and the seconds left
  double end = 0;
  logged_steps({.drive = [&](RunLog& log, const std::function<void()>& step) {
    for (int i = 1; i <= kSteps; ++i) {
      log.step_begins(i);
      sleep(kStep);
      step();
      told.emplace_back(now(), log.seconds_left(i));
      const auto pause = [&](RunLog::Pause reason, int every, double milliseconds) {
        if (i % every == 0 || i == kSteps) {
          log.pause(reason);
          sleep(milliseconds);
          log.resume();
        }
      };
      pause(RunLog::Pause::validation, 5, kValidation);
      pause(RunLog::Pause::save, 4, kSave);
      if (write_milliseconds && i > 4) {
        log.wrote(*write_milliseconds / 1000);
      }
    }
    sleep(write_milliseconds.value_or(0));
    end = now();
  }});
  double worst = 0;
  // From the step after the first validation and save on, all figures are known.
  for (size_t i = 5; i < told.size(); ++i) {
    const double left = end - told[i].first;
    worst = std::max(worst, std::abs(told[i].second / left - 1));
  }
  return worst;
}

TEST(RunLog, TellsTheTimeThatIsLeft) {
  constexpr double kTolerance = 0.2;  // threads that sleep wake late on a busy machine; TimeLeft.* below is exact
  constexpr int kAttempts = 5;
  for (const std::optional<double>& write : {std::optional<double>(), std::optional<double>(120)}) {
    double worst = 1;
    for (int attempt = 0; attempt < kAttempts && worst > kTolerance; ++attempt) {
      worst = worst_error_of_time_left(write);
    }
    EXPECT_LT(worst, kTolerance);
  }
}

// Until a validation was measured, it is as fast as the forward of steps; until a save was measured, its bytes tell.
TEST(TimeLeft, EstimatesWhatWasNotMeasuredYet) {
  const Folder folder;
  TrainConfig config =
      tiny_run(folder.path(), {{"training.steps", "10"}, {"validation.freq", "4"}, {"checkpoint.interval", "5"}});
  constexpr double kStep = 2;
  // After step 3 there are validations after steps 4, 8 and 10, each of as many sequences as three steps, and saves
  // after 5 and 10.
  const WorkBesideSteps beside{.validation_rows = 3 * config.training.rows_per_step(), .save_bytes = 2'000'000'000};
  const double validations = 3 * kStep;
  const double writing = 2e9 / TimeLeft::kSaveBytesPerSecond;
  config.checkpoint.async_mode = "disabled";
  EXPECT_DOUBLE_EQ(TimeLeft(config, beside).seconds(3, kStep), 7 * kStep + validations + 2 * writing);
  config.checkpoint.async_mode = "async";
  const double copying = 2e9 / TimeLeft::kCopyBytesPerSecond;
  EXPECT_DOUBLE_EQ(TimeLeft(config, beside).seconds(3, kStep), 7 * kStep + validations + 2 * copying + writing);
  TimeLeft written(config, beside);
  written.wrote(7);
  EXPECT_DOUBLE_EQ(written.seconds(3, kStep), 7 * kStep + validations + 2 * copying + 7);
}

// Sequences of four documents have a quarter of the pairs of whole ones, and as many tokens.
TEST(RunLog, CountsAttentionWithinDocuments) {
  constexpr double kPeak = 1e15;
  const auto flops_per_token = [&](int64_t documents) {
    const auto first = logged_steps({.peak_flops = kPeak, .documents = documents}).steps.front();
    return first.at("mfu") / first.at("tokens_per_second") * kPeak;
  };
  // The tiny run's model: 12 FLOPs per pair, layer, head and element of a head.
  constexpr double kPerPair = 12.0 * 2 * 2 * 8;
  const double whole = flops_per_token(1);
  expect_near(whole, logged_steps({}).flops_per_token);
  EXPECT_NEAR((whole - flops_per_token(4)) / (kPerPair * kSequence / 2 * 3 / 4), 1, 1e-9);
}

// The number before `unit` in a progress line, as in "1.23 K tok/s".
double number_before(const std::string& line, const std::string& unit) {
  static const std::map<std::string, double> kPrefixes{{"K", 1e3}, {"M", 1e6}, {"G", 1e9}};
  const size_t end = line.find(unit);
  EXPECT_NE(end, std::string::npos) << unit << " in: " << line;
  if (end == std::string::npos) {
    return 0;
  }
  std::istringstream words(line.substr(line.rfind("  ", end), std::string::npos));
  double number = 0;
  std::string prefix;
  words >> number >> prefix;
  const auto found = kPrefixes.find(prefix);
  return number * (found == kPrefixes.end() ? 1 : found->second);
}

// A progress line has the figures of its step in metrics.jsonl. 1 %: three digits, or one after the point.
TEST(RunLog, TheProgressLineHasTheFiguresOfTheFile) {
  ::testing::internal::CaptureStderr();
  const Logged logged = logged_steps({.peak_flops = 3e6, .quiet = false});
  std::istringstream told(::testing::internal::GetCapturedStderr());
  EXPECT_NE(told.str().find("at most 256 tokens each"), std::string::npos) << told.str();  // padding is not known yet
  std::string line;
  while (std::getline(told, line) && line.find("step  1/12") == std::string::npos) {
  }
  const auto& metrics = logged.steps.front();
  const auto expect = [&](double found, double wanted) { EXPECT_NEAR(found, wanted, 0.01 * wanted) << line; };
  expect(number_before(line, " tok/s"), metrics.at("tokens_per_second"));
  expect(number_before(line, " % of peak"), 100 * metrics.at("mfu"));
  const double mib = metrics.at("memory_peak_bytes") / (1 << 20);
  if (line.find(" GiB ") == std::string::npos) {
    expect(number_before(line, " MiB "), mib);
  } else {
    EXPECT_NEAR(number_before(line, " GiB "), mib / 1024, 0.06) << line;  // under a sanitizer
  }
}

TEST(RunLog, CountsEachTokenOfAStepOnceOnManyRanks) {
  for (const Mesh& mesh : {Mesh{.dp_replicate = 2}, Mesh{.dp_shard = 2, .cp = 2}, Mesh{.dp_shard = 2, .pp = 2}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const TrainConfig config = tiny_run(
        folder.path(),
        {{"training.steps", "3"},
         {"training.local_batch_size", "1"},
         {"training.global_batch_size", std::to_string(kBatchSize)},
         {"training.seq_len", std::to_string(kSequence)},
         {"checkpoint.enable", "false"},
         {"validation.enable", "false"}});
    testing::train_on(mesh, config);
    const auto file = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
    const auto rates = metric::read_metric(file, "tokens_per_second").values;
    const auto step_seconds = metric::read_metric(file, "step_seconds").values;
    ASSERT_EQ(rates.size(), 3U);
    double seconds = 0;
    for (size_t i = 0; i < rates.size(); ++i) {
      seconds += step_seconds[i];
      expect_near(rates[i], static_cast<double>(i + 1) * kBatchSize * kSequence / seconds);
    }
  }
}

TEST(RunLog, PeakMemoryIsTheHighestOfAllRanks) {
  constexpr double kFar = 1e15;  // more than this process can have
  const Logged logged = logged_steps({.drive = [&](RunLog& log, const std::function<void()>& step) {
    log.step_begins(1);
    log.peak_of_ranks({.resident = static_cast<int64_t>(kFar)});
    step();
    log.step_begins(2);
    log.peak_of_ranks({.resident = 1});
    step();
  }});
  ASSERT_EQ(logged.steps.size(), 2U);
  for (const auto& metrics : logged.steps) {
    EXPECT_EQ(metrics.at("memory_peak_bytes"), kFar);
  }
}

}  // namespace
}  // namespace lehr::train

// The figures of real runs, each measured in a second way: tokens, speed, share of the peak, memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>

#include "lehr/config/json.h"
#include "lehr/metric/throughput.h"
#include "lehr/train/machine_limits.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::Mesh;
using testing::tiny_run;

constexpr int64_t kTokens = 32;

// Documents of known lengths, at most one to a sequence or several: the log counts their tokens and labels, not the
// padding. Texts are of one byte per token, and each has an end, which is a label and has none.
TEST(Figures, CountTheTokensAndLabelsOfPaddedDocuments) {
  // With its end, a document of 17 to 27 bytes has a sequence of 32 for itself; two of 14 bytes share one.
  for (const auto& [shortest, lengths] : {std::pair<size_t, size_t>{17, 11}, {14, 1}}) {
    const Folder folder;
    std::string lines;
    int64_t tokens = 0, labels = 0;
    constexpr size_t kDocuments = 48;
    for (size_t i = 0; i < kDocuments; ++i) {
      const size_t length = shortest + i % lengths;
      lines += "{\"text\": \"" + std::string(length, 'a') + "\"}\n";
      tokens += static_cast<int64_t>(length) + 1;
      labels += static_cast<int64_t>(length);
    }
    write_file_atomically(folder.path() / "texts.jsonl", lines);
    for (const Mesh& mesh : {Mesh{}, Mesh{.dp_shard = 2}}) {
      SCOPED_TRACE(mesh.name());
      const TrainConfig config = tiny_run(
          folder.path(),
          {{"job.description", mesh.name()},
           {"data.datasets.0.path", "\"" + (folder.path() / "texts.jsonl").string() + "\""},
           {"data.packing", "\"whole\""},
           {"data.repeat", "false"},
           {"data.validation_fraction", "0"},
           {"training.seq_len", std::to_string(kTokens)},
           {"training.local_batch_size", "1"},
           {"training.global_batch_size", "2"},
           {"training.steps", "24"},
           {"checkpoint.enable", "false"},
           {"validation.enable", "false"}});
      std::filesystem::remove_all(config.job.dump_folder);
      testing::train_on(mesh, config);
      const auto file = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
      const auto counted = metric::read_metric(file, "num_tokens").values;
      ASSERT_FALSE(counted.empty());
      EXPECT_EQ(counted.back(), static_cast<double>(tokens));
      double all_labels = 0;
      for (const double of_step : metric::read_metric(file, "step_labels").values) {
        all_labels += of_step;
      }
      EXPECT_EQ(all_labels, static_cast<double>(labels));
    }
  }
}

// A real run, with a clock and a count of FLOPs of the test's own, and the peak that it tells.
struct Timed {
  double flops_per_second = 0;
  double tokens_per_second = 0, told_tokens_per_second = 0;
  double peak = 0, mfu = 0;
};

Timed timed_run() {
  // 6 per weight and token, and 12 per pair, layer, head and element of a head: causal attention.
  constexpr double kH = 128, kF = 256, kLayers = 2, kSequence = 64, kPerStep = 4 * kSequence;
  constexpr double kWeights = kLayers * (2 * kH * kH + 2 * kH * kH / 2 + 3 * kH * kF) + 257 * kH;
  constexpr double kPairs = 4 * kSequence * (kSequence + 1) / 2;
  constexpr double kFlops = 6 * kWeights * kPerStep + 12 * kLayers * kH * kPairs;
  constexpr int64_t kSteps = 12;
  const Folder folder;
  const TrainConfig config = tiny_run(
      folder.path(),
      {{"model.args.hidden_size", "128"},
       {"model.args.intermediate_size", "256"},
       {"model.args.num_attention_heads", "4"},
       {"model.args.num_key_value_heads", "2"},
       {"model.args.head_dim", "32"},
       {"metrics.measure_peak", "true"},
       {"training.seq_len", "64"},
       {"training.steps", std::to_string(kSteps)},
       {"checkpoint.enable", "false"},
       {"validation.enable", "false"}});
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  double begin = 0, end = 0;
  Timed timed;
  ::testing::internal::CaptureStderr();
  {
    Logger log;
    const auto list = testing::specs();
    Trainer trainer(config, {.specs = list, .log = log});
    trainer.events().subscribe(
        Event::step_begin, [&](const EventContext& context) { begin = context.step == 1 ? now() : begin; });
    trainer.events().subscribe(Event::step_end, [&](const EventContext& context) {
      end = now();
      timed.told_tokens_per_second = context.metrics->at("tokens_per_second");
      timed.mfu = context.metrics->at("mfu");
    });
    trainer.run();
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  const std::string before = "peak of this machine: ";
  const size_t at = told.find(before);
  EXPECT_NE(at, std::string::npos);
  size_t digits = 0;
  const double number = std::stod(told.substr(at + before.size()), &digits);
  const char unit = told.at(at + before.size() + digits + 1);
  timed.peak = number * (unit == 'T' ? 1e12 : unit == 'G' ? 1e9 : unit == 'M' ? 1e6 : 1);
  timed.tokens_per_second = kSteps * kPerStep / (end - begin);
  timed.flops_per_second = kSteps * kFlops / (end - begin);
  return timed;
}

// The clocks differ by what happens between the log's reading and the test's: less than 2 %, unless the machine is
// busy. The formula counts the weights of norms, and the peak is printed in three digits: less than 1 % each.
TEST(Figures, OfSpeedAreThoseOfTheTestsClock) {
  constexpr double kTolerance = 0.04;
  constexpr int kAttempts = 5;
  double speed = 0, share = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Timed run = timed_run();
    EXPECT_GT(run.mfu, 0);
    EXPECT_LE(run.mfu, 1);
    speed = run.told_tokens_per_second / run.tokens_per_second - 1;
    share = run.mfu * run.peak / run.flops_per_second - 1;
    if (std::abs(speed) < kTolerance && std::abs(share) < kTolerance) {
      return;
    }
  }
  ADD_FAILURE() << "tokens_per_second is off by " << speed << ", mfu by " << share;
}

// The kernel's accounts, read by other ways: pages in statm, and the record of getrusage.
TEST(Figures, OfMemoryAreThoseOfTheKernelsAccounts) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), {{"checkpoint.enable", "false"}, {"validation.enable", "false"}});
  Logger quiet("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = quiet});
  trainer.events().subscribe(Event::step_end, [&](const EventContext& context) {
    int64_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    const auto bytes = static_cast<double>(resident * sysconf(_SC_PAGESIZE));
    EXPECT_NEAR(context.metrics->at("memory_bytes"), bytes, 0.02 * bytes);  // the log itself takes some in between
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double most = 1024 * static_cast<double>(usage.ru_maxrss);
    EXPECT_NEAR(context.metrics->at("memory_peak_bytes"), most, 0.02 * most);
  });
  trainer.run();
}

// Ranks that are threads have one process, which counts once. 0.1: the log takes the figure before the update.
TEST(Figures, OfMemoryOfRanksCountTheirProcessOnce) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), {{"checkpoint.enable", "false"}, {"validation.enable", "false"}});
  testing::on_mesh({.dp_shard = 2, .tp = 2}, config, 0, [](Trainer& trainer) {
    trainer.events().subscribe(Event::step_end, [](const EventContext& context) {
      if (const auto found = context.metrics->find("memory_bytes");
          found != context.metrics->end()) {  // the first rank
        const auto bytes = static_cast<double>(metric::process_memory().resident);
        EXPECT_NEAR(found->second, bytes, 0.1 * bytes);
      }
    });
    trainer.run();
  });
  EXPECT_FALSE(metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "memory_bytes")
                   .values.empty());
}

// The measurement takes 768 MB, and 64 MB are more than anything else in it.
TEST(MachineLimits, LeaveNoMemoryBehind) {
  const auto resident = [] { return metric::process_memory().resident; };
  measure_limits(at::kFloat, 0.01);  // threads, code
  const int64_t before = resident();
  measure_limits(at::kFloat, 0.01);
  EXPECT_LT(resident() - before, 64 << 20);
  const metric::ProcessMemory after = metric::process_memory();
  EXPECT_LT(after.peak_resident - after.resident, 64 << 20);
}

// By a clock that is a second later whenever it is read: two tensors of 256 MB are read, and one is written.
TEST(MachineLimits, CountTheBytesOfTheirOperations) {
  double now = 0;
  const MachineLimits limits = measure_limits(at::kFloat, 0.01, [&] { return now += 1; });
  EXPECT_DOUBLE_EQ(limits.bytes_per_second, 3.0 * (256 << 20));
}

// docs/figures.md has a row for every figure that a run logs.
TEST(Figures, AreAllExplained) {
  const std::string page = read_file("docs/figures.md");
  const auto expect_rows = [&](const TrainConfig& config) {
    testing::train(config);
    const std::string text = read_file(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl");
    std::istringstream lines(text);
    std::set<std::string> keys;
    for (std::string line; std::getline(lines, line);) {
      const Node metrics = parse_json(line, "metrics.jsonl");
      for (const auto& [key, value] : metrics.entries()) {
        keys.insert(key);
      }
    }
    for (const std::string& key : keys) {
      EXPECT_NE(page.find("`" + key + "`"), std::string::npos) << "docs/figures.md has no row for " << key;
    }
  };
  for (const Overrides& changes :
       {Overrides{{"metrics.measure_peak", "true"}},
        testing::family("qwen3_moe"),
        Overrides{
            {"training.task", "classification"},
            {"data.datasets.0.kind", "classification"},
            {"data.datasets.0.path", "\"recipe/data/who_speaks.txt\""},
            {"data.validation_fraction", "0"},
            {"data.validation_path", "\"recipe/data/who_speaks_validation.txt\""}},
        Overrides{
            {"training.task", "embedding"},
            {"data.datasets.0.kind", "pairs"},
            {"data.datasets.0.path", "\"recipe/data/sentence_pairs.jsonl\""},
            {"data.validation_fraction", "0"},
            {"data.validation_path", "\"recipe/data/sentence_pairs_validation.jsonl\""}}}) {
    const Folder folder;
    expect_rows(tiny_run(folder.path(), changes));
  }
}

}  // namespace
}  // namespace lehr::train

// How fast a run says that it is: tokens a second and the share of the peak, of one rank and of many.
#include "lehr/train/run_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lehr/mesh/fake_transport.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::Mesh;
using testing::tiny_run;

constexpr int64_t kBatchSize = 8;  // of a step, over all ranks
constexpr int64_t kTokens = 32;

// What the log of the first of `world_size` ranks says of some steps, if each rank's device reaches `peak_flops`.
std::vector<std::map<std::string, double>> logged_steps(
    int64_t world_size, double peak_flops, double* flops_per_token) {
  const Folder folder;
  const TrainConfig config = tiny_run(
      folder.path(),
      {{"training.global_batch_size", std::to_string(kBatchSize)},
       {"training.seq_len", std::to_string(kTokens)},
       {"metrics.measure_peak", "true"}});
  const auto tokenizer = build_tokenizer(config);
  const auto list = testing::specs();
  const auto args = build_model_args(config, list.at(config.model).family, *tokenizer);
  const auto model = args->build({});
  const auto optimizer = testing::default_optimizer(*model);
  const auto transport = mesh::fake_transport(0, world_size);
  const Ranks ranks(config.parallelism, transport.get());
  *flops_per_token = static_cast<double>(args->get_nparams_and_flops(kTokens).causal_flops_per_token);

  Logger quiet("", true);
  RunState state;
  RunLog log(
      config,
      *args,
      *model,
      peft::count_trainable(*model),
      *optimizer,
      at::kCPU,
      ranks,
      state,
      quiet,
      /*expected=*/{},
      [&](at::Device, at::ScalarType) { return peak_flops; });
  std::vector<std::map<std::string, double>> steps;
  while (state.step < 3) {
    ++state.step;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    StepResult result;
    result.updated = true;
    steps.push_back(log.step_ended(state, result, /*learning_rate=*/0.1));
  }
  return steps;
}

// The same few numbers in another order: 1e-12 leaves room for their rounding.
void expect_near(double found, double wanted) {
  EXPECT_NEAR(found, wanted, 1e-12 * wanted);
}

TEST(RunLog, SharesThePeakOfAllRanksAmongTheTokensOfAllRanks) {
  constexpr double kPeak = 1e15;  // of a rank; far beyond what is reached here
  for (const int64_t world_size : {1, 2, 4}) {
    double flops_per_token = 0;
    double seconds = 0;
    double tokens = 0;
    for (const auto& metrics : logged_steps(world_size, kPeak, &flops_per_token)) {
      seconds += metrics.at("step_seconds");
      tokens += kBatchSize * kTokens;
      expect_near(metrics.at("tokens_per_second"), tokens / seconds);
      const double peak_of_all = kPeak * static_cast<double>(world_size);
      expect_near(metrics.at("mfu"), flops_per_token * tokens / seconds / peak_of_all);
    }
  }
}

// Others may have used the machine while its peak was measured.
TEST(RunLog, TakesTheFastestStepForThePeakIfItIsFasterThanThePeakThatWasMeasured) {
  double flops_per_token = 0;
  const auto steps = logged_steps(/*world_size=*/2, /*peak_flops=*/1, &flops_per_token);
  double fastest = 0;
  for (const auto& metrics : steps) {
    fastest = std::max(fastest, metrics.at("tokens_per_second"));
    expect_near(metrics.at("mfu"), metrics.at("tokens_per_second") / fastest);
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
         {"training.seq_len", std::to_string(kTokens)},
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
      expect_near(rates[i], static_cast<double>(i + 1) * kBatchSize * kTokens / seconds);
    }
  }
}

}  // namespace
}  // namespace lehr::train

// The operator table accounts for all of a step's time, and has the FLOPs that the model is known to have.
#include <gmock/gmock.h>
#include <kineto/libkineto.h>

#include <functional>
#include <regex>

#include "lehr/config/json.h"
#include "lehr/train/machine_limits.h"
#include "lehr/train/operator_table.h"
#include "lehr/train/precision.h"
#include "lehr/train/profiler.h"
#include "lehr/train/step_profile.h"
#include "test/base/error_of.h"
#include "test/train/mesh_support.h"

namespace lehr::train::testing {
namespace {

using ::testing::HasSubstr;

Node table_of(const TrainConfig& config) {
  return parse_json_file(std::filesystem::path(config.job.dump_folder) / "profile" / "operators.json");
}

Overrides profiled(Overrides more = {}) {
  more.insert(
      more.begin(),
      {{"profiling.operator_table", "true"},
       {"profiling.operator_table_warmup", "1"},
       {"profiling.operator_table_steps", "2"},
       {"profiling.operator_table_measure_seconds", "0.01"},
       {"training.steps", "3"},
       {"validation.enable", "false"},
       {"checkpoint.enable", "false"}});
  return more;
}

double sum_of(const Node& table, const char* figure) {
  double sum = 0;
  for (const Node& kind : table.at("kinds").items()) {
    sum += kind.at(figure).as_double();
  }
  return sum;
}

double of(const Node& table, OperatorKind wanted, const char* figure) {
  for (const Node& kind : table.at("kinds").items()) {
    if (kind.at("kind").as_string() == name_of(wanted)) {
      return kind.at(figure).as_double();
    }
  }
  return 0;
}

// The share of a step that the rows do not account for. Only a callback that is added and removed is outside the
// profile and inside the step's clock: some microseconds, of a step of some milliseconds.
double missing_time(const Node& table) {
  const double step = table.at("seconds").as_double();
  EXPECT_LE(sum_of(table, "seconds"), step);
  return 1 - sum_of(table, "seconds") / step;
}

// Trains, and repeats if the OS interrupted the thread between the two clock readings, as happens on a busy machine.
Node table_with_all_time(const TrainConfig& config, const std::function<void()>& run) {
  constexpr double kMissing = 0.02;
  constexpr int kAttempts = 5;
  Node table;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    run();
    table = table_of(config);
    if (missing_time(table) < kMissing) {
      break;
    }
  }
  EXPECT_LT(missing_time(table), kMissing);
  return table;
}

// The FLOPs of tiny_run's model, which has two layers: 6 per weight and token, except the embedding's look-up, and
// causal attention.
double flops_of_a_step(const ActivationCheckpointConfig& checkpointing) {
  constexpr double kOutputs = 16 * 16 + 24 * 16;  // outputs of attention and FFN, which no backward reads
  constexpr double kLayer = 16 * 16 + 2 * 16 * 8 + 2 * 16 * 24 + kOutputs, kHead = 16 * 257;
  constexpr double kTokens = 4 * 32;
  constexpr double kPairs = 4 * 32 * 33 / 2.0;                          // pairs of a query and a visible key
  const double attention_forward = 2 * kPairs * 2 /*heads*/ * (8 + 8);  // of one layer
  const nn::ActivationCheckpointing policy = checkpointing.policy();
  const bool layers_again = policy.every > 0 && !policy.matmuls_only, products_again = policy.matmuls_only;
  const double again = layers_again     ? 2 * kLayer
                       : products_again ? kLayer - kOutputs
                                        : 0;  // matmuls of every second layer
  const double attention = layers_again ? 4 : 3;
  return kTokens * (2 * 6 * kLayer + 2 * again + 6 * kHead) + 2 * attention * attention_forward;
}

// The limits are those of this machine, measured again. A factor of 10: on a busy machine either measurement may be
// slow. OperatorTable.PrintsTheFiguresOfTheReport and MachineLimits.CountTheBytesOfTheirOperations have no such
// tolerance.
void expect_limits_of_the_machine(const Node& table, at::ScalarType dtype) {
  const MachineLimits again = measure_limits(dtype, 0.01);
  const double flops = table.at("peak_flops_per_second").as_double() / again.flops;
  const double bytes = table.at("peak_bytes_per_second").as_double() / again.bytes_per_second;
  EXPECT_TRUE(flops > 0.1 && flops < 10) << flops;
  EXPECT_TRUE(bytes > 0.1 && bytes < 10) << bytes;
}

class Profile : public ::testing::TestWithParam<std::pair<const char*, Overrides>> {};
INSTANTIATE_TEST_SUITE_P(
    Runs,
    Profile,
    ::testing::Values(
        std::pair{"float32", Overrides{}},
        std::pair{"mixed", Overrides{{"training.mixed_precision_param", "bfloat16"}}},
        std::pair{"one_batch", Overrides{{"training.local_batch_size", "4"}}},
        std::pair{"all_kept", Overrides{{"activation_checkpoint.mode", "none"}}},
        std::pair{"checkpointed", Overrides{{"activation_checkpoint.mode", "full"}}}),
    [](const auto& run) { return std::string(run.param.first); });

TEST_P(Profile, AccountsForAllTimeAndTheFlopsOfTheModel) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), profiled(GetParam().second));
  const Node table = table_with_all_time(config, [&] { train(config); });
  EXPECT_EQ(table.at("first_step").as_int(), 2);
  EXPECT_EQ(table.at("steps").as_int(), 2);
  EXPECT_EQ(sum_of(table, "flops"), flops_of_a_step(config.activation_checkpoint));
  for (const OperatorKind kind :
       {OperatorKind::matmul,
        OperatorKind::attention,
        OperatorKind::norm,
        OperatorKind::activation,
        OperatorKind::loss,
        OperatorKind::embedding,
        OperatorKind::optimizer,
        OperatorKind::clipping,
        OperatorKind::data,
        OperatorKind::between}) {
    EXPECT_GT(of(table, kind, "seconds"), 0) << name_of(kind);
  }
  expect_limits_of_the_machine(table, compute_type(config.training));
  const std::string text = read_file(std::filesystem::path(config.job.dump_folder) / "profile" / "operators.txt");
  EXPECT_THAT(text, HasSubstr("matmul"));
  EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("128 x 16 x 257"), HasSubstr("64 x 16 x 257")));
}

// The bytes are also right in the very first step.
TEST(ProfileOfOptimizer, HasTheBytesThatAnUpdateMustReadAndWrite) {
  for (const char* warmup : {"0", "1"}) {
    SCOPED_TRACE(warmup);
    const Folder folder;
    const TrainConfig config = tiny_run(folder.path(), profiled({{"profiling.operator_table_warmup", warmup}}));
    train(config);
    // AdamW in float32 reads and writes the value and two moments, and reads the gradient; step counters add little.
    const double parameters = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24 + 2 * 16 + 2 * 8) + 16 + 16 * 257;
    const double bytes = of(table_of(config), OperatorKind::optimizer, "bytes");
    EXPECT_GE(bytes, 7 * 4 * parameters);
    EXPECT_LE(bytes, 7 * 4 * parameters * 1.05);
  }
}

TEST(ProfileOfExperts, HasTheirMatmulsAndRouting) {
  const Folder folder;
  auto overrides = family("qwen3_moe");
  overrides.insert(overrides.end(), {{"training.global_batch_size", "4"}, {"training.dtype", "float32"}});
  for (const auto& entry : profiled()) {
    overrides.push_back(entry);
  }
  const TrainConfig config = tiny_run(folder.path(), overrides);
  const Node table = table_with_all_time(config, [&] { train(config); });
  EXPECT_GT(of(table, OperatorKind::routing, "calls"), 0);
}

TEST(ProfileOfMeshes, HasRankZerosTimeIncludingWaits) {
  for (const Mesh& mesh : {Mesh{.dp_shard = 2}, Mesh{.tp = 2}, Mesh{.cp = 2}, Mesh{.pp = 2}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    auto overrides = family("qwen3");
    for (const auto& entry : profiled({{"training.global_batch_size", "4"}, {"training.dtype", "float32"}})) {
      overrides.push_back(entry);
    }
    const TrainConfig config = tiny_run(folder.path(), overrides);
    const Node table =
        table_with_all_time(config, [&] { on_mesh(mesh, config, 0, [](Trainer& trainer) { trainer.run(); }); });
    EXPECT_EQ(table.at("ranks").as_int(), 2);
    EXPECT_GT(of(table, OperatorKind::communication, "seconds"), 0);
    EXPECT_GT(of(table, OperatorKind::communication, "bytes"), 0);
    EXPECT_GT(of(table, OperatorKind::matmul, "flops"), 0);
  }
}

TEST(ProfileRefuses, ARunThatIsTooShort) {
  const Folder folder;
  EXPECT_THAT(  // three steps do not fit into two
      any_error::error_of([&] {
        tiny_run(folder.path(), profiled({{"training.steps", "2"}}));
      }),
      HasSubstr("profiling.operator_table_steps"));
}

TEST(ProfileRefuses, StepsThatAreCapturedAsAGraph) {
  const Folder folder;
  const TrainConfig plain = tiny_run(folder.path(), {{"training.cuda_graphs", "true"}});
  StepProfile::check_device(plain, at::kCUDA);
  StepProfile::check_device(tiny_run(folder.path(), profiled()), at::kCUDA);
  const TrainConfig config = tiny_run(folder.path(), profiled({{"training.cuda_graphs", "true"}}));
  EXPECT_THAT(  // a graph is one launch
      any_error::error_of([&] { StepProfile::check_device(config, at::Device(at::kCUDA, 1)); }),
      HasSubstr("training.cuda_graphs"));
}

// A device that reaches one mark per millisecond.
class FakeDevice : public ProfileClock {
 public:
  void start() override {}
  size_t mark() override { return marks_++; }
  void wait() override {}
  double seconds(size_t begin, size_t end) const override { return 1e-3 * static_cast<double>(end - begin); }

 private:
  size_t marks_ = 0;
};

TEST(ProfileOfADevice, HasTheTimesOfTheDevicesClock) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), profiled());
  StepProfile profile(config, at::kCPU, /*ranks=*/1, /*done=*/0, std::make_unique<FakeDevice>());
  const at::Tensor a = at::ones({6, 6});
  for (int64_t step = 1; step <= profile.last_step(); ++step) {
    profile.step_begins(step);
    a.mm(a);
    profile.step_ended(step);
  }
  const Node table = table_of(config);
  EXPECT_EQ(of(table, OperatorKind::matmul, "calls"), 1);
  EXPECT_DOUBLE_EQ(of(table, OperatorKind::matmul, "seconds"), 1e-3);
  EXPECT_DOUBLE_EQ(of(table, OperatorKind::between, "seconds"), 2e-3);
}

// A profile of one start, as with lehr train --profile.
TEST(ProfileOfOneStart, IsNotWrittenToTheConfigOfTheRun) {
  for (const bool always : {false, true}) {
    const Folder folder;
    const TrainConfig config = tiny_run(
        folder.path(),
        profiled({{"profiling.operator_table", always ? "true" : "false"}, {"profiling.enable_profiling", "true"}}));
    ::testing::internal::CaptureStderr();
    Logger log;
    const auto list = specs();
    Trainer(config, {.specs = list, .log = log, .profile = true}).run();
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(table_of(config).at("steps").as_int(), 2);
    EXPECT_THAT(told, HasSubstr("its times include the overhead of profiling.enable_profiling's traces"));
    const std::string left = read_file(std::filesystem::path(config.job.dump_folder) / "config.toml");
    EXPECT_THAT(left, HasSubstr(always ? "operator_table = true" : "operator_table = false"));
  }
}

TEST(ProfileOfAResumedRun, IsLeftOutIfTooFewStepsRemain) {
  const Folder folder;
  const TrainConfig config =
      tiny_run(folder.path(), profiled({{"checkpoint.enable", "true"}, {"checkpoint.interval", "1"}}));
  train(config, 2);
  EXPECT_EQ(train(config).step, 3);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.job.dump_folder) / "profile"));
}

bool kineto_is_prepared() {  // it is set up at its first use in a process
  return libkineto::api().isProfilerInitialized() && libkineto::api().activityProfiler().isActive();
}

TEST(Traces, PrepareKinetoForTheStepsOfWarmUp) {
  const Folder folder;
  const ProfilingConfig config{.enable_profiling = true, .profile_freq = 6, .profiler_active = 1, .profiler_warmup = 3};
  Profiler profiler(config, folder.path(), at::kCPU);
  std::vector<int64_t> prepared;
  for (int64_t step = 1; step <= 8; ++step) {
    profiler.step_begins(step);
    if (kineto_is_prepared()) {
      prepared.push_back(step);
    }
    profiler.step_ended(step);
    EXPECT_EQ(std::filesystem::exists(folder.path() / "profile" / "iteration_6"), step >= 6) << step;
  }
  EXPECT_THAT(prepared, ::testing::ElementsAre(3, 4, 5, 6)) << "three of warm-up, and the traced one";
  EXPECT_EQ(profiler.problem(), "");
}

TEST(Traces, LeaveKinetoFreeIfARunEndsInTheWarmUp) {
  const Folder folder;
  {
    Profiler profiler({.enable_profiling = true, .profile_freq = 6}, folder.path(), at::kCPU);
    profiler.step_begins(4);
    EXPECT_TRUE(kineto_is_prepared());
  }
  EXPECT_FALSE(kineto_is_prepared());
}

TEST(Traces, PrepareKinetoLateIfARunResumesInTheWarmUp) {
  const Folder folder;
  Profiler profiler({.enable_profiling = true, .profile_freq = 6}, folder.path(), at::kCPU);
  for (int64_t step = 5; step <= 6; ++step) {
    profiler.step_begins(step);
    EXPECT_TRUE(kineto_is_prepared()) << step;
    profiler.step_ended(step);
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "profile" / "iteration_6" / "rank0_trace.json"));
}

TEST(OperatorTable, NamesTheMachineOfItsLimits) {
  OperatorReport report{.steps = 1, .first_step = 1, .seconds = 1, .limits = {.flops = 1, .bytes_per_second = 1}};
  EXPECT_THAT(to_text(report), HasSubstr("at best this machine computes "));
  report.ranks = 2;
  EXPECT_THAT(to_text(report), HasSubstr("at best rank 0 alone, while the others wait, computes "));
  report.source = "NVIDIA H200 (data sheet)";
  EXPECT_THAT(to_text(report), HasSubstr("at best NVIDIA H200 (data sheet) computes "));
}

// A report of two steps whose figures are easy to divide, as text and as JSON.
TEST(OperatorTable, PrintsTheFiguresOfTheReport) {
  OperatorReport report{.steps = 2, .first_step = 5, .seconds = 4, .limits = {.flops = 50e9, .bytes_per_second = 20e9}};
  report.kinds[static_cast<size_t>(OperatorKind::matmul)] = {.calls = 6, .seconds = 3, .flops = 90e9, .bytes = 12e9};
  report.products[{.batch = 1, .m = 2, .k = 3, .n = 4}] = {.calls = 4, .seconds = 2, .flops = 40e9, .bytes = 8e9};
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("steps 5 to 6: 2000.0 ms each"));
  EXPECT_THAT(text, HasSubstr("computes 50.0 GFLOP/s"));
  EXPECT_THAT(text, HasSubstr("moves 20.0 GB/s"));
  const auto line_of = [&](const std::string& name) {
    const size_t begin = text.find("\n" + name + " ") + 1;
    return std::regex_replace(text.substr(begin, text.find('\n', begin) - begin), std::regex(" +"), " ");
  };
  EXPECT_EQ(line_of("matmul"), "matmul 1500.00 75.0 % 3 30.0 4.0 60 % compute");
  EXPECT_EQ(line_of("sum"), "sum 1500.00 75.0 %");
  EXPECT_EQ(line_of("2"), "2 x 3 x 4 1000.00 2 20.0 40 %");
  const Node node = to_node(report);
  EXPECT_EQ(node.at("seconds").as_double(), 2);
  EXPECT_EQ(node.at("peak_flops_per_second").as_double(), 50e9);
  EXPECT_EQ(node.at("peak_bytes_per_second").as_double(), 20e9);
  EXPECT_EQ(of(node, OperatorKind::matmul, "seconds"), 1.5);
  EXPECT_EQ(of(node, OperatorKind::matmul, "calls"), 3);
  EXPECT_EQ(of(node, OperatorKind::matmul, "flops"), 45e9);
  EXPECT_EQ(of(node, OperatorKind::matmul, "bytes"), 6e9);
  EXPECT_DOUBLE_EQ(of(node, OperatorKind::matmul, "share_of_limit"), 0.6);
}

TEST(OperatorTable, NamesTheLimitingResource) {
  const MachineLimits limits{.flops = 100, .bytes_per_second = 10};
  const auto limit = [&](OperatorKind kind, const OperatorTotals& totals) {
    return std::string(limit_of(kind, totals, limits));
  };
  EXPECT_EQ(limit(OperatorKind::matmul, {.seconds = 1, .flops = 80, .bytes = 1}), "compute");
  EXPECT_EQ(limit(OperatorKind::norm, {.seconds = 1, .bytes = 6}), "memory");
  EXPECT_EQ(limit(OperatorKind::other, {.seconds = 1, .flops = 30, .bytes = 4}), "overhead");
  EXPECT_EQ(limit(OperatorKind::between, {.seconds = 1}), "overhead");
  EXPECT_EQ(limit(OperatorKind::communication, {.seconds = 1, .bytes = 9}), "waiting");
  EXPECT_DOUBLE_EQ(share_of_limit({.seconds = 2, .flops = 80, .bytes = 10}, limits), 0.5);
}

TEST(OperatorTable, ComparesFloat8WithItsOwnPeak) {
  const OperatorTotals half{.seconds = 2, .flops = 200, .float8_flops = 100};
  EXPECT_DOUBLE_EQ(share_of_limit(half, {.flops = 100, .float8_flops = 200, .bytes_per_second = 1}), 0.75);
  EXPECT_DOUBLE_EQ(share_of_limit(half, {.flops = 100, .bytes_per_second = 1}), 1) << "no peak of float8";
  OperatorReport report{.steps = 1, .first_step = 1, .seconds = 2};
  report.limits = {.flops = 100e9, .float8_flops = 200e9, .bytes_per_second = 1e9};
  report.products[{.m = 2, .k = 3, .n = 4}] = {.calls = 1, .seconds = 2, .flops = 200e9, .float8_flops = 200e9};
  EXPECT_THAT(to_text(report), HasSubstr("matmuls and 200.0 in float8 and moves 1.0 GB/s"));
  EXPECT_THAT(to_text(report), HasSubstr("100.0      50 %"));
}

}  // namespace
}  // namespace lehr::train::testing

#include "lehr/plan/machine.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <map>
#include <tuple>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/operation_meter.h"
#include "lehr/ops/attention.h"
#include "lehr/ops/matmul.h"
#include "test/train/support.h"

namespace lehr::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Machine, PresetsAreSound) {
  for (const Machine& one : machine_presets()) {
    Problems problems;
    one.check(problems);
    EXPECT_TRUE(problems.empty()) << one.name;
    EXPECT_EQ(to_toml(load_machine(one.name)), to_toml(one));
  }
}

TEST(Machine, OverridesWin) {
  const Machine machine = load_machine("h200", {{"network_gb_per_second", "12.5"}});
  EXPECT_EQ(machine.network_gb_per_second, 12.5);
  EXPECT_EQ(machine.memory_gb, 141);
}

TEST(Machine, AFileStartsFromThePresetThatItNames) {
  const train::testing::Folder folder;
  const auto file = folder.path() / "cluster.toml";
  write_file_atomically(file, "name = \"a100\"\nmemory_gb = 40\n");
  const Machine machine = load_machine(file.string());
  EXPECT_EQ(machine.memory_gb, 40);
  EXPECT_EQ(machine.tflops_bfloat16, 312);
}

TEST(Machine, PrintedTextReadsBackAsTheSame) {
  const train::testing::Folder folder;
  const auto file = folder.path() / "cluster.toml";
  Machine machine = load_machine("a100");
  machine.name = "ours";
  machine.ranks_per_node = 4;
  write_file_atomically(file, to_toml(machine));
  EXPECT_EQ(to_toml(load_machine(file.string())), to_toml(machine));
}

TEST(Machine, RefusesInvalidInputByName) {
  EXPECT_THAT([] { load_machine("h10"); }, ThrowsMessage<Error>(AllOf(HasSubstr("'h10'"), HasSubstr("'h100'"))));
  EXPECT_THAT(
      [] {
        load_machine("h100", {{"achieved_fraction", "1.5"}});
      },
      ThrowsMessage<Error>(HasSubstr("achieved_fraction")));
  EXPECT_THAT([] { load_machine("h100", {{"reserved_gb", "80"}}); }, ThrowsMessage<Error>(HasSubstr("reserved_gb")));
  EXPECT_THAT([] { load_machine("h100", {{"memory", "80"}}); }, ThrowsMessage<Error>(HasSubstr("memory_gb")));
}

// The best rate of `work`, which the meter counts.
double own_rate(const std::function<void()>& work) {
  double flops = 0;
  {
    const OperationMeter meter;
    work();
    flops = meter.counts().flops();
  }
  double best = 0;
  const auto now = std::chrono::steady_clock::now;
  const auto deadline = now() + std::chrono::milliseconds(250);
  while (now() < deadline) {
    const auto begin = now();
    work();
    best = std::max(best, flops / std::chrono::duration<double>(now() - begin).count());
  }
  return best;
}

at::Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, dtype).set_requires_grad(true);
}

double own_matmul_rate(at::ScalarType dtype) {
  const at::Tensor a = numbers({1024, 1024}, dtype).detach(), b = numbers({1024, 1024}, dtype).detach();
  return std::max(own_rate([&] { at::mm(a, b); }), own_rate([&] { ops::product(a, b); }));
}

double own_attention_rate(at::ScalarType dtype) {
  const at::Tensor q = numbers({1, 1024, 8, 64}, dtype), k = numbers({1, 1024, 8, 64}, dtype),
                   v = numbers({1, 1024, 8, 64}, dtype);
  return own_rate([&] { ops::attention(q, k, v).sum().backward(); });
}

// Rates of the same kernels, counted and timed by the test. 8 %: a figure that is a tenth too large fails. A busy
// machine is measured again.
TEST(Machine, CalibrationIsTheRateOfTheKernels) {
  constexpr double kTolerance = 0.08;
  constexpr int kAttempts = 6;
  std::map<std::string, double> best;  // error by figure
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Machine machine = calibrate_cpu(load_machine("cpu"));
    Problems problems;
    machine.check(problems);
    EXPECT_TRUE(problems.empty());
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::string of = dtype == at::kFloat ? " in float32" : " in bfloat16";
      for (const auto& [figure, fraction, own] :
           {std::tuple{"matmul", machine.matmul_fraction(dtype), own_matmul_rate(dtype)},
            {"attention", machine.attention_fraction(dtype), own_attention_rate(dtype)}}) {
        EXPECT_GT(fraction, 0) << figure << of;
        EXPECT_LE(fraction, 1) << figure << of;
        const double error = std::abs(fraction * machine.peak_flops(dtype) / own - 1);
        best[figure + of] = attempt == 0 ? error : std::min(best[figure + of], error);
      }
    }
    EXPECT_GT(machine.achieved_expert_fraction, 0);
    EXPECT_LE(machine.achieved_expert_fraction, 1);
    const auto is_good = [&](const auto& one) { return one.second < kTolerance; };
    if (std::all_of(best.begin(), best.end(), is_good)) {
      return;
    }
  }
  for (const auto& [figure, error] : best) {
    EXPECT_LT(error, kTolerance) << figure;
  }
}

TEST(Machine, FractionsInBfloat16AreThoseOfFloat32UnlessTheyAreSet) {
  Machine machine{.achieved_fraction = 0.8, .achieved_expert_fraction = 0.4, .achieved_attention_fraction = 0.5};
  EXPECT_DOUBLE_EQ(machine.matmul_fraction(at::kBFloat16), 0.8);
  EXPECT_DOUBLE_EQ(machine.expert_fraction(at::kBFloat16), 0.4);
  EXPECT_DOUBLE_EQ(machine.attention_fraction(at::kBFloat16), 0.5);
  machine.achieved_fraction_bfloat16 = 0.2;
  machine.achieved_attention_fraction_bfloat16 = 0.1;
  EXPECT_DOUBLE_EQ(machine.matmul_fraction(at::kBFloat16), 0.2);
  EXPECT_DOUBLE_EQ(machine.expert_fraction(at::kBFloat16), 0.1);
  EXPECT_DOUBLE_EQ(machine.attention_fraction(at::kBFloat16), 0.1);
  EXPECT_DOUBLE_EQ(machine.matmul_fraction(at::kFloat), 0.8);
  EXPECT_DOUBLE_EQ(machine.attention_fraction(at::kFloat), 0.5);
}

}  // namespace
}  // namespace lehr::plan

#include "lehr/plan/machine.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <string>

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

// What is wrong with one calibration, by rates of the same kernels that the test counts and times itself.
std::string wrong_with_calibration() {
  Machine machine;
  try {
    machine = calibrate_cpu(load_machine("cpu"));
  } catch (const Error& busy) {  // it says so if the peak was measured beside other work
    return busy.what();
  }
  Problems problems;
  machine.check(problems);
  std::string wrong = problems.empty() ? "" : "a fraction is out of range; ";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto compare = [&](const char* figure, double fraction, double own) {
      const double ratio = fraction * machine.peak_flops(dtype) / own;
      if (!(ratio > 0.5 && ratio < 2)) {
        wrong += fmt::format("{} in {}: {:.3g} of the test's own rate; ", figure, c10::toString(dtype), ratio);
      }
    };
    compare("matmul", machine.matmul_fraction(dtype), own_matmul_rate(dtype));
    compare("attention", machine.attention_fraction(dtype), own_attention_rate(dtype));
  }
  return wrong;
}

// A factor of 2: other work on the machine slows one of two measurements, and a wrong count is off by more. A busy
// machine is measured again.
TEST(Machine, CalibrationIsTheRateOfTheKernels) {
  std::string wrong = wrong_with_calibration();
  for (int again = 0; again < 4 && !wrong.empty(); ++again) {
    wrong = wrong_with_calibration();
  }
  EXPECT_EQ(wrong, "");
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

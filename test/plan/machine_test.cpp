#include "lehr/plan/machine.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/config.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "test/train/support.h"

namespace lehr::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Machine, PresetsAreSound) {
  for (const char* const name : {"h100", "h200", "b200", "a100", "cpu"}) {
    const Machine one = load_machine(name);
    Problems problems;
    one.check(problems);
    EXPECT_TRUE(problems.empty()) << name;
    EXPECT_EQ(one.name, name);
  }
}

TEST(Machine, OverridesWin) {
  const Machine machine = load_machine("h200", {{"network_gb_per_second", "12.5"}});
  EXPECT_EQ(machine.network_gb_per_second, 12.5);
  EXPECT_EQ(machine.memory_gb, 150.1);
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
  EXPECT_THAT([] { load_machine("h100", {{"reserved_gb", "85"}}); }, ThrowsMessage<Error>(HasSubstr("reserved_gb")));
  EXPECT_THAT([] { load_machine("h100", {{"memory", "80"}}); }, ThrowsMessage<Error>(HasSubstr("memory_gb")));
}

at::Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, dtype).set_requires_grad(true);
}

// By a clock that is a second later whenever it is read, every measured step takes a second: the figures are the FLOPs
// and bytes of the kernels, which the test counts itself.
TEST(Machine, CalibrationCountsTheWorkOfEachKernel) {
  double now = 0;
  const Machine machine = calibrate_cpu(load_machine("cpu"), [&] { return now += 1; });
  const auto counted = [](const std::function<void()>& work) {
    const OperationMeter meter;
    work();
    return meter.counts().flops();
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const double peak = machine.peak_flops(dtype);
    const auto expect = [&](double fraction, double flops) { EXPECT_NEAR(fraction * peak, flops, 1e-9 * flops); };
    expect(machine.matmul_fraction(dtype), 2.0 * 512 * 512 * 512);
    const at::Tensor q = numbers({1, 1024, 8, 64}, dtype), k = numbers({1, 1024, 8, 64}, dtype),
                     v = numbers({1, 1024, 8, 64}, dtype);
    expect(machine.attention_fraction(dtype), counted([&] { ops::attention(q, k, v).sum().backward(); }));
  }
  const at::Tensor input = numbers({8 * 64, 512}, at::kFloat), weight = numbers({8, 512, 512}, at::kFloat);
  const at::Tensor ends = (at::arange(8, at::kInt) + 1) * 64;
  const double experts = counted([&] { ops::grouped_linear(input, weight, ends).sum().backward(); });
  EXPECT_NEAR(machine.expert_fraction(at::kFloat) * machine.peak_flops(at::kFloat), experts, 1e-9 * experts);
  // Two tensors of 2^26 float32 are read, and one is written; a layer has an eighth of a second each way.
  EXPECT_DOUBLE_EQ(machine.memory_gb_per_second, 3 * 4 * double{1 << 26} / 1e9);
  EXPECT_DOUBLE_EQ(machine.layer_overhead_us, 1e6 / 8);
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

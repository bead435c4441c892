#include "lehr/plan/machine.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <string>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/operation_meter.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/matmul/matmul.h"
#include "lehr/train/builders.h"
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

// The time that a layer of a tiny model takes, forward or backward, by what a model of nine has more than one of one.
double own_layer_microseconds() {
  const auto step_seconds = [](const char* layers) {
    const train::testing::Folder folder;
    const auto config = train::testing::tiny_run(folder.path(), {{"model.args.num_hidden_layers", layers}});
    const auto specs = train::testing::specs();
    const auto tokenizer = train::build_tokenizer(config);
    const auto model = train::build_model_args(config, specs.at(config.model).family, *tokenizer)->build({});
    nn::materialize(*model, at::kCPU, at::kFloat);
    model->reset_parameters();
    nn::ModelInputs inputs;
    inputs.input_ids = inputs.labels = at::randint(257, {1, 8}, at::kLong);
    double least = 1;
    const auto now = std::chrono::steady_clock::now;
    for (const auto deadline = now() + std::chrono::milliseconds(200); now() < deadline;) {
      const auto begin = now();
      model->forward(inputs).nll().sum().backward();
      least = std::min(least, std::chrono::duration<double>(now() - begin).count());
    }
    return least;
  };
  return 1e6 * (step_seconds("9") - step_seconds("1")) / 8 / 2;
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

// The problems of one calibration, by rates of the same kernels that the test counts and times itself.
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
  if (const double ratio = machine.layer_overhead_us / own_layer_microseconds(); !(ratio > 0.5 && ratio < 2)) {
    wrong += fmt::format("a layer takes {:.3g} of the test's own time; ", ratio);
  }
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

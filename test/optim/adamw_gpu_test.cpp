// The CUDA kernel of AdamW, as a loop on the host and on a GPU if there is one, compared with the CPU's kernel.
#include "lehr/optim/adamw_gpu.h"

#include "lehr/optim/adamw.h"
#include "test/ops/kernels_test.h"
#include "test/optim/adamw_tensors.h"

namespace lehr::optim {
namespace {
using testing_support::random_tensors;

class AdamWCuda : public ops::test::KernelsTest {
 protected:
  AdamWTensors moved(const AdamWTensors& t) const {
    return {
        there(t.value.clone()), there(t.grad.clone()), there(t.exp_avg.clone()), there(t.exp_avg_sq.clone()), t.step};
  }

  // Does the step with the kernel, on copies of the tensors, and with the CPU's kernel in place. `found_inf` and
  // `divisor` are on the device, as in training.
  std::vector<AdamWTensors> step_both(
      const std::vector<AdamWTensors>& tensors, AdamWNumbers numbers, bool skipped = false) const {
    std::vector<AdamWTensors> copies;
    std::vector<double> steps;
    for (const AdamWTensors& t : tensors) {
      copies.push_back(moved(t));
      steps.push_back(t.step);
    }
    const at::Tensor taken = there(at::tensor(steps, at::kFloat));
    const at::Tensor divisor =
        numbers.grad_divisor == 1 ? at::Tensor() : there(at::full({}, numbers.grad_divisor, at::kFloat));
    const at::Tensor found_inf = there(at::full({1}, skipped ? 1.0 : 0.0, at::kFloat));
    expect_kernels(true, [&] {
      AdamWNumbers on_device = numbers;
      on_device.grad_divisor = 1;
      adamw_on_gpu_(copies, on_device, {.steps = taken, .grad_divisor = divisor, .found_inf = found_inf});
    });
    if (!skipped) {
      adamw_on_cpu_(tensors, numbers);
    }
    return copies;
  }

  // The GPU's root, quotient and reciprocals are off by at most 2 units of the last place each, and it fuses other
  // multiply-adds: together below 16 units, 2e-6. In bfloat16 such a difference can round a result to the neighbouring
  // number.
  static void expect_close(const AdamWTensors& ours, const AdamWTensors& expected) {
    const bool narrow = expected.value.scalar_type() == at::kBFloat16;
    const double relative = narrow ? 1.0 / 128 : 2e-6;
    const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
      return at::allclose(a.cpu().to(at::kFloat), b.to(at::kFloat), relative, 1e-7);
    };
    EXPECT_TRUE(close(ours.value, expected.value));
    EXPECT_TRUE(close(ours.exp_avg, expected.exp_avg));
    EXPECT_TRUE(close(ours.exp_avg_sq, expected.exp_avg_sq));
    if (narrow) {  // rounding to the other neighbour is rare
      const at::Tensor other = ours.value.cpu().ne(expected.value).sum();
      EXPECT_LE(other.item<int64_t>(), 2 + expected.value.numel() / 1000);
    }
  }
};

const AdamWNumbers kNumbers{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

std::vector<AdamWNumbers> settings() {
  std::vector<AdamWNumbers> list(5, kNumbers);
  list[1].grad_divisor = 3.7F;
  list[2].weight_decay = 0;
  list[3].beta1 = 0.3;  // exp_avg is interpolated from the gradient on
  list[4].eps = 1e-2;   // as large as the roots
  return list;
}

TEST_P(AdamWCuda, EqualsTheCpu) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const AdamWNumbers& numbers : settings()) {
      const std::vector<AdamWTensors> tensors = {random_tensors(40'000, type, 1), random_tensors(70'001, type, 300)};
      const std::vector<AdamWTensors> ours = step_both(tensors, numbers);
      expect_close(ours[0], tensors[0]);
      expect_close(ours[1], tensors[1]);
    }
  }
}

// More than one launch; sizes at the ends of pieces, and different steps.
TEST_P(AdamWCuda, UpdatesManyTensorsOfAnySize) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<AdamWTensors> tensors;
    for (int64_t i = 0; i < 150; ++i) {
      const int64_t size = i % 3 == 0 ? i % 11 : ops::cuda::kAdamWPiece + i % 5 - 2;
      tensors.push_back(random_tensors(size, type, static_cast<double>(1 + i % 7)));
    }
    const std::vector<AdamWTensors> ours = step_both(tensors, kNumbers);
    for (size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE(i);
      expect_close(ours[i], tensors[i]);
    }
  }
}

TEST_P(AdamWCuda, AcceptsUnalignedTensors) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const AdamWTensors whole = random_tensors(40'001, type, 2);
    const AdamWTensors copy = moved(whole);
    const auto without_first = [](const AdamWTensors& t) {
      const auto rest = [](const at::Tensor& x) { return x.narrow(0, 1, x.numel() - 1); };
      return AdamWTensors{rest(t.value), rest(t.grad), rest(t.exp_avg), rest(t.exp_avg_sq), t.step};
    };
    adamw_on_gpu_(
        {without_first(copy)},
        kNumbers,
        {.steps = there(at::full({1}, 2, at::kFloat)), .grad_divisor = {}, .found_inf = {}});
    adamw_on_cpu_({without_first(whole)}, kNumbers);
    expect_close(copy, whole);
  }
}

TEST_P(AdamWCuda, WritesNothingInASkippedStep) {
  const AdamWTensors tensors = random_tensors(40'000, at::kFloat, 2);
  const AdamWTensors ours = step_both({tensors}, kNumbers, /*skipped=*/true).front();
  EXPECT_TRUE(at::equal(ours.value.cpu(), tensors.value));
  EXPECT_TRUE(at::equal(ours.exp_avg.cpu(), tensors.exp_avg));
  EXPECT_TRUE(at::equal(ours.exp_avg_sq.cpu(), tensors.exp_avg_sq));
}

TEST_P(AdamWCuda, DoesNotChangeGradientsAndMarksWrittenTensors) {
  const AdamWTensors tensors = moved(random_tensors(5000, at::kFloat, 2));
  const at::Tensor grad = tensors.grad.clone();
  const auto version = tensors.value._version();
  const at::Tensor divisor = there(at::full({}, 2, at::kFloat));
  adamw_on_gpu_(
      {tensors}, kNumbers, {.steps = there(at::full({1}, 2, at::kFloat)), .grad_divisor = divisor, .found_inf = {}});
  EXPECT_TRUE(at::equal(tensors.grad, grad));
  EXPECT_GT(tensors.value._version(), version);
}

TEST_P(AdamWCuda, IsTheOptimizersStep) {
  const at::Tensor value = there(at::randn({300})), grad = there(at::randn({300}));
  const at::Tensor expected = value.cpu().clone();
  OptimizerConfig config;
  config.lr = kNumbers.lr;
  config.beta1 = kNumbers.beta1;
  config.beta2 = kNumbers.beta2;
  config.eps = kNumbers.eps;
  config.weight_decay = kNumbers.weight_decay;
  AdamW here(config, {"w"});
  const std::vector<NamedParameter> parameters = {{.name = "w", .value = value, .grad = grad, .placement = {}}};
  expect_kernels(true, [&] { here.step(parameters, {}); });
  const std::vector<AdamWTensors> one = {{expected, grad.cpu(), at::zeros({300}), at::zeros({300}), 1}};
  adamw_on_cpu_(one, kNumbers);
  EXPECT_TRUE(at::allclose(value.cpu(), expected, 1e-6, 1e-7));
}

// A step with a gradient that is not finite counts neither for the moments nor for the bias correction.
TEST_P(AdamWCuda, DoesNotCountASkippedStep) {
  OptimizerConfig config;
  const at::Tensor start = at::randn({300}), grad = there(at::randn({300}));
  std::vector<at::Tensor> results;
  for (const bool with_skipped : {false, true}) {
    const at::Tensor value = there(start.clone());
    AdamW adamw(config, {"w"});
    const std::vector<NamedParameter> parameters = {{.name = "w", .value = value, .grad = grad, .placement = {}}};
    if (with_skipped) {
      adamw.step(parameters, {.found_inf = there(at::ones({1}))});
    }
    adamw.step(parameters, {.found_inf = there(at::zeros({1}))});
    results.push_back(value.cpu());
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_FALSE(at::equal(results[0], start));
}

INSTANTIATE_TEST_SUITE_P(, AdamWCuda, testing::Bool(), ops::test::place_name);

}  // namespace
}  // namespace lehr::optim

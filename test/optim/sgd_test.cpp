// SGD, compared with torch.optim.SGD(fused=True) and with a scalar definition in float64.
#include "lehr/optim/sgd.h"

#include <gmock/gmock.h>

#include "lehr/optim/clip.h"
#include "test/optim/support.h"

namespace lehr::optim {
namespace {
using namespace testing_support;

OptimizerConfig config_of(double momentum, double dampening, bool nesterov, double weight_decay) {
  OptimizerConfig config{.name = OptimizerKind::sgd, .lr = 0.05, .weight_decay = weight_decay};
  config.momentum = momentum;
  config.dampening = dampening;
  config.nesterov = nesterov;
  return config;
}

at::Tensor after_five_steps(const OptimizerConfig& config, double max_norm = 0) {
  SGD sgd(config, {"w"});
  const at::Tensor w = values(at::kFloat);
  for (int64_t t = 0; t < 5; ++t) {
    const auto gradient = grads(t, at::kFloat);
    StepOptions options;
    if (max_norm > 0) {
      options.grad_divisor = clip_divisor(global_norm({gradient}), max_norm);
    }
    sgd.step({{"w", w, gradient}}, options);
  }
  return w;
}

// torch 2.11; tolerance: a few float32 roundings.
TEST(SGD, EqualsTorchInFloat32) {
  expect_elements(
      after_five_steps(config_of(0, 0, false, 0)),
      {-2.2593751, -2.10624981, -0.137500003, 0.134375006, 1.62812507, 1.74687493, 2.22187471},
      2e-6,
      "without momentum");
  expect_elements(
      after_five_steps(config_of(0.9, 0, true, 0.1)),
      {-2.06218696, -1.8966254, -0.164587125, 0.181915209, 1.49265695, 1.58365345, 1.96306336},
      2e-6,
      "Nesterov");
  expect_elements(
      after_five_steps(config_of(0.9, 0.25, false, 0.1), 0.3),
      {-2.1223762, -2.00445533, -0.128955781, 0.133359507, 1.53508484, 1.65213823, 2.109689},
      2e-6,
      "dampened and clipped");
}

TEST(SGD, EqualsTheScalarDefinitionInFloat64) {
  const OptimizerConfig config = config_of(0.9, 0.25, false, 0.1);
  SGD sgd(config, {"w"});
  const at::Tensor w = values(at::kDouble);
  std::vector<double> value(kSize);
  std::vector<double> buffer(kSize);
  for (int64_t t = 0; t < 10; ++t) {
    sgd.step({{"w", w, grads(t, at::kDouble)}}, {.lr_factor = 0.5});
    for (int64_t i = 0; i < kSize; ++i) {
      double& p = value[static_cast<size_t>(i)];
      double& b = buffer[static_cast<size_t>(i)];
      p = t == 0 ? value_at(i) : p;
      const double g = grad_at(i, t) + 0.1 * p;
      b = t == 0 ? g : 0.9 * b + 0.75 * g;
      p -= 0.025 * b;
      ASSERT_NEAR(w.data_ptr<double>()[i], p, 1e-13);  // ten steps of a few roundings of numbers near 1
    }
  }
}

TEST(SGD, ResumesBitForBit) {
  for (const auto& config : {config_of(0.9, 0, true, 0.1), config_of(0, 0, false, 0)}) {
    SGD whole(config, {"w"});
    const auto w = values(at::kBFloat16);
    for (int64_t t = 0; t < 6; ++t) {
      whole.step({{"w", w, grads(t, at::kBFloat16)}});
    }
    const auto resumed = values(at::kBFloat16);
    SGD first(config, {"w"});
    first.step({{"w", resumed, grads(0, at::kBFloat16)}});
    SGD second(config, {"w"});
    second.allocate({{"w", resumed, {}}});
    second.load_state(saved_state(first));
    for (int64_t t = 1; t < 6; ++t) {
      second.step({{"w", resumed, grads(t, at::kBFloat16)}});
    }
    EXPECT_TRUE(at::equal(w, resumed));
  }
}

TEST(SGD, KeepsNoBufferWithoutMomentum) {
  SGD sgd(config_of(0, 0, false, 0), {"w"});
  sgd.allocate({{"w", values(at::kFloat), {}}});
  EXPECT_EQ(sgd.state_bytes(), 0);
  SGD heavy(config_of(0.9, 0, false, 0), {"w"});
  heavy.allocate({{"w", values(at::kFloat), {}}});
  EXPECT_EQ(heavy.state_bytes(), 4 * kSize);
}

}  // namespace
}  // namespace lehr::optim

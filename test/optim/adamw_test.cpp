// AdamW compared with a scalar definition in float64, with torch.optim.AdamW(fused=True), and with itself after a
// resume.
#include "lehr/optim/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lehr/optim/clip.h"
#include "test/optim/support.h"

namespace lehr::optim {
namespace {
using namespace testing_support;

const OptimizerConfig kConfig{.lr = 0.05, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

// Loshchilov and Hutter's algorithm 2 for one number.
struct ScalarAdamW {
  double p = 0, m = 0, v = 0;
  int t = 0;
  void step(double g, double lr, const OptimizerConfig& c) {
    ++t;
    p -= lr * c.weight_decay_or_default() * p;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    p -= lr * (m / (1 - std::pow(c.beta1, t))) / (std::sqrt(v / (1 - std::pow(c.beta2, t))) + c.eps);
  }
};

TEST(AdamW, EqualsTheScalarDefinitionInFloat64) {
  AdamW adamw(kConfig, {"w"});
  const at::Tensor w = values(at::kDouble);
  std::vector<ScalarAdamW> reference(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    reference[static_cast<size_t>(i)].p = value_at(i);
  }
  for (int64_t t = 0; t < 20; ++t) {
    const double factor = 1.0 / static_cast<double>(t + 1);
    const auto gradient = grads(t, at::kDouble);
    const auto divisor = clip_divisor(global_norm({gradient}), 0.5);
    const double coefficient = 1 / divisor.item<double>();
    ASSERT_LT(coefficient, 1.0);
    adamw.step({{"w", w, gradient}}, {.lr_factor = factor, .grad_divisor = divisor});
    for (int64_t i = 0; i < kSize; ++i) {
      auto& scalar = reference[static_cast<size_t>(i)];
      scalar.step(grad_at(i, t) * coefficient, kConfig.lr * factor, kConfig);
      // 20 steps of about ten roundings each, on numbers near 1.
      ASSERT_NEAR(w.data_ptr<double>()[i], scalar.p, 1e-13) << "step " << t << ", element " << i;
      ASSERT_NEAR(entry(adamw, "w.exp_avg").data_ptr<double>()[i], scalar.m, 1e-13);
      ASSERT_NEAR(entry(adamw, "w.exp_avg_sq").data_ptr<double>()[i], scalar.v, 1e-13);
    }
  }
}

// Expected are elements 0, 1, 17, 19, 31, 32 and 36 after five steps of torch.optim.AdamW(fused=True), torch 2.11.
struct Golden {
  at::ScalarType dtype;
  double max_norm;  // of clip_grad_norm_; 0: no clipping
  double tolerance;
  std::vector<double> value, exp_avg, exp_avg_sq;
};

void expect_golden(const Golden& golden) {
  AdamW adamw(kConfig, {"w"});
  const at::Tensor w = values(golden.dtype);
  for (int64_t t = 0; t < 5; ++t) {
    const auto gradient = grads(t, golden.dtype);
    StepOptions options;
    if (golden.max_norm > 0) {
      options.grad_divisor = clip_divisor(global_norm({gradient}), golden.max_norm);
    }
    adamw.step({{"w", w, gradient}}, options);
  }
  expect_elements(w, golden.value, golden.tolerance, "value");
  expect_elements(entry(adamw, "w.exp_avg"), golden.exp_avg, golden.tolerance, "exp_avg");
  expect_elements(entry(adamw, "w.exp_avg_sq"), golden.exp_avg_sq, golden.tolerance, "exp_avg_sq");
}

TEST(AdamW, EqualsTorchInFloat32) {
  // Tolerance: a few float32 roundings; the instruction set decides on fused multiply-adds.
  expect_golden(
      {at::kFloat,
       0,
       2e-6,
       {-2.12851882, -2.05065346, -0.227419555, 0.262775213, 1.54330122, 1.70201504, 2.03948593},
       {0.024184376, -0.0330862477, 0.0181025006, -0.0059087486, -0.00749187358, 0.00212437543, 0.0436968766},
       {0.0116943661, 0.00813057087, 0.00725275418, 0.0120023387, 0.0068079941, 0.00697119301, 0.00946484972}});
}

TEST(AdamW, ClipsLikeTorchInFloat32) {
  expect_golden(
      {at::kFloat,
       0.3,
       2e-6,
       {-2.12893867, -2.04835033, -0.224745899, 0.261539251, 1.54659569, 1.69986796, 2.0407064},
       {0.00604326976, -0.00846891385, 0.00428306498, -0.00127492473, -0.00209292513, 0.000720309501, 0.0106590549},
       {0.00070846465, 0.000515459338, 0.00044464838, 0.000731702778, 0.000425236416, 0.000440350384, 0.00057369523}});
}

TEST(AdamW, EqualsTorchInBFloat16) {
  // Tolerance: one unit in the last of eight bits, in case a float32 rounding moves a value across a tie.
  expect_golden(
      {at::kBFloat16,
       0,
       1.0 / 128,
       {-2.125, -2.0625, -0.228515625, 0.263671875, 1.5390625, 1.6953125, 2.046875},
       {0.024169921875,
        -0.032958984375,
        0.01806640625,
        -0.005889892578125,
        -0.007415771484375,
        0.0021209716796875,
        0.043701171875},
       {0.01171875,
        0.00811767578125,
        0.007232666015625,
        0.011962890625,
        0.006805419921875,
        0.006988525390625,
        0.0093994140625}});
}

TEST(AdamW, ClipsLikeTorchInFloat64) {
  expect_golden(
      {at::kDouble,
       0.3,
       1e-11,  // the smallest moment loses a few digits to cancellation
       {-2.1289383917327473,
        -2.0483500654358857,
        -0.22474588767368775,
        0.2615392560085205,
        1.5465953678409776,
        1.6998678735479977,
        2.0407060906158985},
       {0.006043268938641166,
        -0.008468913583679839,
        0.004283064319588105,
        -0.0012749247228721178,
        -0.002092924632045866,
        0.0007203100193354627,
        0.010659053271222076},
       {0.0007084644718118268,
        0.0005154592785852122,
        0.0004446482858414346,
        0.0007317026122639936,
        0.00042523634045516667,
        0.00044035030572723725,
        0.0005736951147440161}});
}

TEST(Adam, AddsWeightDecayToTheGradientLikeTorch) {
  Adam adam(kConfig, {"w"});
  const at::Tensor w = values(at::kFloat);
  for (int64_t t = 0; t < 5; ++t) {
    adam.step({{"w", w, grads(t, at::kFloat)}});
  }
  // torch.optim.Adam(fused=True), torch 2.11; a few float32 roundings.
  expect_elements(
      w, {-2.06237054, -1.90518117, -0.215169132, 0.254385293, 1.45102561, 1.54250383, 2.02615404}, 2e-6, "value");
}

TEST(Adam, EqualsTheScalarDefinitionInFloat64) {
  Adam adam(kConfig, {"w"});
  const at::Tensor w = values(at::kDouble);
  std::vector<ScalarAdamW> reference(kSize);
  OptimizerConfig no_decay = kConfig;
  no_decay.weight_decay = 0;
  for (int64_t t = 0; t < 20; ++t) {
    adam.step({{"w", w, grads(t, at::kDouble)}}, {.lr_factor = 0.5});
    for (int64_t i = 0; i < kSize; ++i) {
      auto& scalar = reference[static_cast<size_t>(i)];
      scalar.p = t == 0 ? value_at(i) : scalar.p;
      scalar.step(grad_at(i, t) + *kConfig.weight_decay * scalar.p, kConfig.lr * 0.5, no_decay);
      ASSERT_NEAR(w.data_ptr<double>()[i], scalar.p, 1e-13);  // as for AdamW
    }
  }
}

TEST(AdamW, UsesTheSettingsOfEachGroup) {
  OptimizerConfig config = kConfig;
  config.param_groups = {{.pattern = "norm", .weight_decay = 0.0}, {.pattern = "head", .lr_multiplier = 2.0}};
  AdamW adamw(config, {"norm", "head", "rest"});
  const auto norm = values(at::kDouble), head = values(at::kDouble), rest = values(at::kDouble);
  const auto gradient = grads(0, at::kDouble);
  adamw.step({{"norm", norm, gradient}, {"rest", rest, gradient}, {"head", head, gradient}});
  for (int64_t i = 0; i < kSize; ++i) {
    const auto expect = [&](const at::Tensor& tensor, double lr, double weight_decay) {
      ScalarAdamW scalar{.p = value_at(i)};
      OptimizerConfig numbers = kConfig;
      numbers.weight_decay = weight_decay;
      scalar.step(grad_at(i, 0), lr, numbers);
      EXPECT_NEAR(tensor.data_ptr<double>()[i], scalar.p, 1e-14);
    };
    expect(norm, 0.05, 0.0);
    expect(head, 0.10, 0.1);
    expect(rest, 0.05, 0.1);
  }
}

TEST(AdamW, UpdatesParametersThatRequireGradAndAreReplacedBetweenSteps) {
  AdamW moved(kConfig, {"w"});
  AdamW fixed(kConfig, {"w"});
  at::Tensor w = values(at::kFloat).requires_grad_();
  const at::Tensor still = values(at::kFloat);
  for (int64_t t = 0; t < 4; ++t) {
    moved.step({{"w", w, grads(t, at::kFloat)}});
    fixed.step({{"w", still, grads(t, at::kFloat)}});
    EXPECT_TRUE(w.requires_grad());
    w = w.detach().clone().requires_grad_();
  }
  EXPECT_TRUE(at::equal(w.detach(), still));
}

TEST(AdamW, SkipsParametersWithoutGradients) {
  AdamW adamw(kConfig, {"a", "b"});
  const auto a = values(at::kFloat), b = values(at::kFloat);
  adamw.step({{"a", a, grads(0, at::kFloat)}, {"b", b, {}}});
  adamw.step({{"a", a, grads(1, at::kFloat)}, {"b", b, grads(1, at::kFloat)}});
  EXPECT_EQ(entry(adamw, "a.step").item<int64_t>(), 2);
  EXPECT_EQ(entry(adamw, "b.step").item<int64_t>(), 1);
}

TEST(AdamW, AcceptsNonContiguousGradientsAndEmptyShards) {
  AdamW adamw(kConfig, {"w", "none"});
  const auto w = values(at::kDouble).narrow(0, 0, 36).reshape({6, 6}).clone();
  const auto plain = w.clone();
  const auto gradient = grads(0, at::kDouble).narrow(0, 0, 36).reshape({6, 6}).clone();
  const auto none = at::empty({0, 4}, at::kDouble);
  adamw.step({{"w", w, gradient.t()}, {"none", none, none.clone()}});
  AdamW other(kConfig, {"w"});
  other.step({{"w", plain, gradient.t().contiguous()}});
  EXPECT_TRUE(at::equal(w, plain));
}

TEST(AdamW, ResumesBitForBit) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    AdamW whole(kConfig, {"w"});
    const auto w = values(dtype);
    for (int64_t t = 0; t < 8; ++t) {
      whole.step({{"w", w, grads(t, dtype)}});
    }
    std::map<std::string, at::Tensor> saved;
    const auto resumed = values(dtype);
    {
      AdamW first(kConfig, {"w"});
      for (int64_t t = 0; t < 3; ++t) {
        first.step({{"w", resumed, grads(t, dtype)}});
      }
      for (const auto& [name, tensor] : first.state()) {
        saved[name] = tensor.clone();
      }
    }
    AdamW second(kConfig, {"w"});
    second.allocate({{"w", resumed, {}}});
    second.load_state(saved);
    for (int64_t t = 3; t < 8; ++t) {
      second.step({{"w", resumed, grads(t, dtype)}});
    }
    EXPECT_TRUE(at::equal(w, resumed));
    EXPECT_TRUE(at::equal(entry(whole, "w.exp_avg"), entry(second, "w.exp_avg")));
    EXPECT_TRUE(at::equal(entry(whole, "w.exp_avg_sq"), entry(second, "w.exp_avg_sq")));
    EXPECT_EQ(entry(second, "w.step").item<int64_t>(), 8);
  }
}

TEST(AdamW, ListsAllMismatchesWhenLoading) {
  AdamW adamw(kConfig, {"a", "b"});
  const auto a = values(at::kFloat);
  adamw.allocate({{"a", a, {}}, {"b", a.clone(), {}}});
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : adamw.state()) {
    saved[name] = at::ones_like(tensor);
  }
  saved.erase("a.exp_avg_sq");
  saved["b.exp_avg"] = at::ones({3});
  saved["c.step"] = at::ones({}, at::kLong);
  const std::string message = error_of([&] { adamw.load_state(saved); });
  EXPECT_THAT(message, testing::HasSubstr("a.exp_avg_sq: missing"));
  EXPECT_THAT(message, testing::HasSubstr("b.exp_avg: expected Float [37] on cpu, found Float [3] on cpu"));
  EXPECT_THAT(message, testing::HasSubstr("c.step: belongs to no parameter"));
  EXPECT_EQ(entry(adamw, "a.exp_avg").abs().sum().item<double>(), 0.0) << "nothing may be loaded from a bad state";
}

TEST(AdamW, RefusesMismatchedTensorsBeforeChangingAny) {
  AdamW adamw(kConfig, {"a", "b"});
  const auto a = values(at::kFloat);
  const auto step_b = [&](const at::Tensor& value, const at::Tensor& grad) {
    return error_of([&] { adamw.step({{"a", a, grads(0, at::kFloat)}, {"b", value, grad}}); });
  };
  EXPECT_THAT(step_b(at::ones({3}), at::ones({4})), testing::StartsWith("b: its gradient is Float [4]"));
  EXPECT_THAT(step_b(at::ones({3}), at::ones({3}, at::kDouble)), testing::StartsWith("b: its gradient is Double"));
  EXPECT_THAT(step_b(at::ones({3}, at::kLong), at::ones({3}, at::kLong)), testing::HasSubstr("found Long"));
  EXPECT_THAT(step_b(at::ones({3, 2}).t(), at::ones({2, 3})), testing::HasSubstr("contiguous"));
  EXPECT_THAT(error_of([&] { adamw.step({{"c", a, a}}); }), testing::StartsWith("c: the optimizer was not built"));
  EXPECT_TRUE(at::equal(a, values(at::kFloat)));
  EXPECT_TRUE(adamw.state().empty());
}

TEST(AdamW, CountsTheBytesOfItsMoments) {
  AdamW adamw(kConfig, {"w"});
  adamw.allocate({{"w", values(at::kFloat), {}}});
  EXPECT_EQ(adamw.state_bytes(), 2 * 4 * kSize);
}

}  // namespace
}  // namespace lehr::optim

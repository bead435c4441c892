// AdamW with stochastic rounding: the inputs of its random numbers, and training that nearest rounding would lose.
#include "lehr/optim/stochastic_adamw.h"

#include <gmock/gmock.h>

#include "lehr/optim/adamw.h"
#include "test/optim/support.h"

namespace lehr::optim {
namespace {
using namespace testing_support;
using ::testing::HasSubstr;

OptimizerConfig config_of(const std::string& state_dtype) {
  return {.name = OptimizerKind::stochastic_adamw, .lr = 0.05, .weight_decay = 0.1, .state_dtype = state_dtype};
}

TEST(StochasticAdamW, ResumesBitForBitWithEitherState) {
  for (const char* type : {"float32", "bfloat16"}) {
    StochasticAdamW whole(config_of(type), {"w"}, 7);
    const auto w = values(at::kBFloat16);
    for (int64_t t = 0; t < 8; ++t) {
      whole.step({{"w", w, grads(t, at::kBFloat16)}});
    }
    const auto resumed = values(at::kBFloat16);
    StochasticAdamW first(config_of(type), {"w"}, 7);
    for (int64_t t = 0; t < 3; ++t) {
      first.step({{"w", resumed, grads(t, at::kBFloat16)}});
    }
    StochasticAdamW second(config_of(type), {"w"}, 7);
    second.allocate({{"w", resumed, {}}});
    second.load_state(saved_state(first));
    for (int64_t t = 3; t < 8; ++t) {
      second.step({{"w", resumed, grads(t, at::kBFloat16)}});
    }
    EXPECT_TRUE(at::equal(w, resumed));
    EXPECT_TRUE(at::equal(entry(whole, "w.exp_avg"), entry(second, "w.exp_avg")));
    EXPECT_TRUE(at::equal(entry(whole, "w.exp_avg_sq"), entry(second, "w.exp_avg_sq")));
  }
}

TEST(StochasticAdamW, ShardsRoundLikeTheWholeTensor) {
  const auto initial = values(at::kBFloat16).narrow(0, 0, 36).view({4, 9});
  const auto grad = [](int64_t t) { return grads(t, at::kBFloat16).narrow(0, 0, 36).view({4, 9}); };
  StochasticAdamW whole(config_of("bfloat16"), {"w"}, 7);
  const auto w = initial.clone();
  for (int64_t t = 0; t < 4; ++t) {
    whole.step({{"w", w, grad(t).clone()}});
  }
  for (const int64_t dim : {0, 1}) {
    StochasticAdamW sharded(config_of("bfloat16"), {"w"}, 7);
    const auto part = initial.narrow(dim, 1, 3).clone();
    ShardSpan placement{.shape = {4, 9}, .offset = {0, 0}};
    placement.offset[static_cast<size_t>(dim)] = 1;
    for (int64_t t = 0; t < 4; ++t) {
      sharded.step({{"w", part, grad(t).narrow(dim, 1, 3).clone(), placement}});
    }
    EXPECT_TRUE(at::equal(part, w.narrow(dim, 1, 3)));
  }
}

TEST(StochasticAdamW, AnotherSeedOrNameRoundsDifferently) {
  const auto after = [](uint64_t seed, const std::string& name) {
    StochasticAdamW adamw(config_of("float32"), {name}, seed);
    const auto w = at::ones({1000}, at::kBFloat16);
    adamw.step({{name, w, at::full_like(w, 0.1)}}, {.lr_factor = 0.01});
    return w;
  };
  EXPECT_TRUE(at::equal(after(1, "a"), after(1, "a")));
  EXPECT_FALSE(at::equal(after(1, "a"), after(2, "a")));
  EXPECT_FALSE(at::equal(after(1, "a"), after(1, "b")));
}

// Before rounding, the numbers of all elements are the same, and lie 0.74, 0.80 and 0.07 of the way between two
// bfloat16 numbers. If the tensors shared their noise, every element that rounds up the least likely of them would
// round up both others, too.
TEST(StochasticAdamW, RoundsTheValueAndEachMomentByNoiseOfItsOwn) {
  OptimizerConfig config = config_of("bfloat16");
  config.lr = 1e-3;
  config.weight_decay = 0.0;
  StochasticAdamW adamw(config, {"w"}, 5);
  const auto w = at::ones({10000}, at::kBFloat16);
  adamw.step({{"w", w, at::ones_like(w)}});
  const auto is_up = [](const at::Tensor& rounded) { return rounded.gt(rounded.min()); };
  const std::vector<at::Tensor> up{is_up(w), is_up(entry(adamw, "w.exp_avg")), is_up(entry(adamw, "w.exp_avg_sq"))};
  for (size_t a = 0; a < up.size(); ++a) {
    for (size_t b = 0; b < up.size(); ++b) {
      if (a != b) {
        EXPECT_TRUE(up[a].logical_and(up[b].logical_not()).any().item<bool>()) << a << " up and " << b << " down";
      }
    }
  }
}

// 200 steps of 1e-4 from 1, where bfloat16's neighbours are 2^-7 above and 2^-8 below: each step is far below half of
// that, so plain AdamW in bfloat16 never moves. Here the mean of 10000 parameters falls by 0.02, within five standard
// errors: each parameter does a random walk in steps of 2^-8 with a variance of at most 0.02 * 2^-8.
TEST(StochasticAdamW, AccumulatesUpdatesThatNearestRoundingLoses) {
  const OptimizerConfig config{.lr = 1e-4, .weight_decay = 0.0};
  AdamW nearest(config, {"w"});
  StochasticAdamW stochastic(config, {"w"}, 3);
  const auto lost = at::ones({10000}, at::kBFloat16);
  const auto kept = at::ones({10000}, at::kBFloat16);
  for (int64_t t = 0; t < 200; ++t) {
    nearest.step({{"w", lost, at::full_like(lost, 0.5)}});
    stochastic.step({{"w", kept, at::full_like(kept, 0.5)}});
  }
  EXPECT_EQ(lost.to(at::kDouble).mean().item<double>(), 1.0);
  EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 1 - 200 * 1e-4, 5 * std::sqrt(0.02 / 256 / 10000));
}

TEST(StochasticAdamW, RefusesParametersThatAreNotBFloat16) {
  StochasticAdamW adamw(config_of("float32"), {"w"}, 1);
  const auto w = values(at::kFloat);
  EXPECT_THAT(
      error_of([&] {
        adamw.step({{"w", w, grads(0, at::kFloat)}});
      }),
      HasSubstr("w: stochastic_adamw updates bfloat16 parameters, found Float [37] on cpu; set training.dtype"));
  EXPECT_THAT(error_of([&] { adamw.allocate({{"w", w, {}}}); }), HasSubstr("stochastic_adamw updates bfloat16"));
}

TEST(StochasticAdamW, CountsTheBytesOfItsMoments) {
  for (const auto& [type, bytes] : {std::pair("float32", 8), std::pair("bfloat16", 4)}) {
    StochasticAdamW adamw(config_of(type), {"w"}, 1);
    adamw.allocate({{"w", values(at::kBFloat16), {}}});
    EXPECT_EQ(adamw.state_bytes(), bytes * kSize);
  }
}

}  // namespace
}  // namespace lehr::optim

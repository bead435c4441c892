// Stochastic rounding, compared with known bits, with its definition on every instruction set, and with statistics.
#include "lehr/optim/stochastic_rounding.h"

#include <gmock/gmock.h>

#include <limits>

#include "lehr/base/random.h"
#include "test/ops/against_reference.h"
#include "test/optim/support.h"

namespace lehr::optim {
namespace {
using namespace testing_support;
using ops::test::supported_archs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 454809965;

std::vector<int> bits_of(const at::Tensor& tensor) {
  std::vector<int> bits;
  const auto* words = static_cast<const uint16_t*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    bits.push_back(words[i]);
  }
  return bits;
}

at::Tensor rounded(const at::Tensor& x, const RoundingNoise& noise) {
  at::Tensor y = at::empty(x.sizes(), at::kBFloat16);
  copy_stochastically_(y, x, noise);
  return y;
}

at::Tensor rounded_by_reference(const at::Tensor& x, const RoundingNoise& noise) {
  at::Tensor y = at::empty(x.sizes(), at::kBFloat16);
  copy_stochastically_reference_(y, x, noise);
  return y;
}

// Expected are the words of Triton's tl.randint, which is Philox with the element's index as its counter.
TEST(RoundingNoise, EqualsTritonForARawSeed) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0})[0], 0x6627e8d5U);
  EXPECT_EQ(philox({0, 0, 0, 0}, {123, 0})[0], 0x11237cdcU);
  EXPECT_EQ(philox({1, 0, 0, 0}, {123, 0})[0], 0xa3c0144eU);
  EXPECT_EQ(philox({2, 0, 0, 0}, {123, 0})[0], 0x2c1b5aa5U);
  EXPECT_EQ(philox({3, 0, 0, 0}, {123, 0})[0], 0x1e66d4d6U);
  // The lower half of the number is 0x8000: the upper half is incremented if the noise is at least that.
  const auto half = at::full({4}, 1.0 + 1.0 / 256);
  EXPECT_THAT(bits_of(rounded(half, raw_rounding_noise(123))), ElementsAre(0x3f80, 0x3f80, 0x3f80, 0x3f81));
}

TEST(StochasticRounding, ProducesTheKnownBits) {
  const std::vector<float> numbers{
      1 + 0.3F / 128, -1 - 0.3F / 128, 3.14159F, 1e-8F, 100.003F, -2.7182818F, 0.1F, 65504.0F};
  const at::Tensor x = at::tensor(numbers);
  for (const ops::Arch arch : supported_archs()) {
    const ops::ArchScope scope(arch);
    EXPECT_THAT(
        bits_of(rounded(x, raw_rounding_noise(kSeed))),
        ElementsAre(0x3f81, 0xbf80, 0x4049, 0x322c, 0x42c8, 0xc02e, 0x3dcc, 0x4780));
  }
}

TEST(StochasticRounding, EqualsItsDefinitionOnEveryInstructionSet) {
  const at::Tensor x = at::linspace(-3, 5, 1003);
  for (const auto& noise : {rounding_noise(7, 3, "w"), raw_rounding_noise(uint64_t{1} << 40 | 5)}) {
    const auto expected = bits_of(rounded_by_reference(x, noise));
    for (const ops::Arch arch : supported_archs()) {
      const ops::ArchScope scope(arch);
      EXPECT_EQ(bits_of(rounded(x, noise)), expected);
    }
  }
}

TEST(StochasticRounding, KeepsNonFiniteNumbersAndCreatesNoInfinities) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float most = std::numeric_limits<float>::max();
  at::Tensor x = at::empty({6, 64});
  const std::vector<float> rows{inf, -inf, most, -most, 0.0F, -0.0F};
  for (size_t i = 0; i < rows.size(); ++i) {
    x[static_cast<int64_t>(i)].fill_(rows[i]);
  }
  for (const auto& y : {rounded(x, rounding_noise(1, 1, "w")), rounded_by_reference(x, rounding_noise(1, 1, "w"))}) {
    const auto bits = bits_of(y);
    for (size_t i = 0; i < bits.size(); ++i) {
      EXPECT_EQ(bits[i], std::vector<int>({0x7f80, 0xff80, 0x7f7f, 0xff7f, 0x0000, 0x8000})[i / 64]);
    }
  }
  // A NaN whose payload is in the lower half, and one that would overflow its 32 bits when the noise is added.
  const at::Tensor nan = at::empty({2, 64}, at::kInt);
  nan[0].fill_(0x7f800001);
  nan[1].fill_(-1);
  EXPECT_TRUE(at::isnan(rounded(nan.view(at::kFloat), rounding_noise(1, 1, "w"))).all().item<bool>());
  EXPECT_TRUE(at::isnan(rounded_by_reference(nan.view(at::kFloat), rounding_noise(1, 1, "w"))).all().item<bool>());
}

TEST(StochasticRounding, RoundsUpWithTheRightProbability) {
  const int64_t count = 2'000'000;
  for (const double share : {0.1, 0.25, 0.5, 0.9}) {
    const auto y = rounded(at::full({count}, 1 + share / 128), rounding_noise(11, 2, "w")).to(at::kDouble);
    const double up = y.gt(1).to(at::kDouble).mean().item<double>();
    // Five standard errors of at most 0.5 / sqrt(2e6).
    EXPECT_NEAR(up, share, 1.8e-3);
  }
}

// Adjacent elements, and the same elements of other steps and other tensors, are rounded independently: correlation of
// a million pairs, five standard errors.
TEST(StochasticRounding, DrawsIndependentNoise) {
  const auto half = at::full({1'000'000}, 1 + 0.5 / 128);
  const auto draw = [&](int64_t step, const char* name) {
    return rounded(half, rounding_noise(3, step, name)).to(at::kDouble).gt(1).to(at::kDouble) * 2 - 1;
  };
  const auto base = draw(1, "w");
  for (const int64_t lag : {1, 8, 16, 64, 128}) {
    const int64_t rest = base.numel() - lag;
    EXPECT_NEAR((base.narrow(0, 0, rest) * base.narrow(0, lag, rest)).mean().item<double>(), 0, 5e-3) << lag;
  }
  EXPECT_NEAR((base * draw(2, "w")).mean().item<double>(), 0, 5e-3);
  EXPECT_NEAR((base * draw(1, "v")).mean().item<double>(), 0, 5e-3);
}

TEST(StochasticRounding, DoesNotDependOnSharding) {
  const std::vector<int64_t> shape{7, 9, 50};
  const auto x = at::linspace(1, 2, 7 * 9 * 50).view(shape);
  for (const auto& noise : {rounding_noise(5, 1, "w"), raw_rounding_noise(5)}) {
    const auto whole = rounded(x, noise);
    for (int64_t dim = 0; dim < 3; ++dim) {
      const int64_t begin = 2;
      const int64_t size = shape[static_cast<size_t>(dim)] - 4;
      ShardSpan placement{.shape = shape, .offset = {0, 0, 0}};
      placement.offset[static_cast<size_t>(dim)] = begin;
      const auto part = x.narrow(dim, begin, size).contiguous();
      for (const auto& copy : {copy_stochastically_, copy_stochastically_reference_}) {
        const auto y = at::empty_like(part, part.options().dtype(at::kBFloat16));
        copy(y, part, noise, placement);
        EXPECT_TRUE(at::equal(y, whole.narrow(dim, begin, size))) << "dim " << dim;
      }
    }
  }
}

// Block numbers and indices of elements that need more than 32 bits.
TEST(StochasticRounding, CountsElementsIn64Bits) {
  const auto x = at::linspace(1, 2, 300);
  for (const int64_t first : {(int64_t{1} << 32) - 100, (int64_t{1} << 35) - 100}) {
    const ShardSpan placement{.shape = {int64_t{1} << 36}, .offset = {first}};
    for (const auto& noise : {rounding_noise(5, 1, "w"), raw_rounding_noise(5)}) {
      const auto fast = at::empty({300}, at::kBFloat16);
      const auto plain = at::empty({300}, at::kBFloat16);
      copy_stochastically_(fast, x, noise, placement);
      copy_stochastically_reference_(plain, x, noise, placement);
      EXPECT_TRUE(at::equal(fast, plain));
      EXPECT_FALSE(at::equal(fast, rounded(x, noise)));
    }
  }
}

TEST(StochasticRounding, DoesNotDependOnTheThreads) {
  const auto x = at::linspace(1, 2, 200'001);
  const auto several = rounded(x, rounding_noise(5, 1, "w"));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(several, rounded(x, rounding_noise(5, 1, "w"))));
  at::set_num_threads(threads);
}

TEST(StochasticRounding, RefusesInvalidTensors) {
  const auto target = at::empty({4}, at::kBFloat16);
  const auto error = [&](const at::Tensor& y, const at::Tensor& x) {
    return error_of([&] { copy_stochastically_(y, x, raw_rounding_noise(1)); });
  };
  EXPECT_THAT(error(at::empty({4}), at::empty({4})), HasSubstr("the target must be contiguous and bfloat16"));
  EXPECT_THAT(error(target, at::empty({5})), HasSubstr("found Float [5]"));
  EXPECT_THAT(error(target, at::empty({4}, at::kDouble)), HasSubstr("float32"));
}

// ---- AdamW on top of it

StochasticAdamWTensors known_tensors() {
  return {
      .value = at::tensor({1.0, -0.5, 0.25, 2.0}).to(at::kBFloat16),
      .grad = at::tensor({0.1F, -0.2F, 0.3F, 0.05F}),
      .exp_avg = at::tensor({0.01F, 0.02F, -0.03F, 0.0F}),
      .exp_avg_sq = at::tensor({0.001F, 0.002F, 0.003F, 0.0F})};
}
const StochasticAdamWNumbers kNumbers{
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .step = 3};

TEST(StochasticAdamWStep, ProducesTheKnownBits) {
  const StochasticAdamWNoise noise{
      .value = raw_rounding_noise(kSeed),
      .exp_avg = raw_rounding_noise(kSeed + 42),
      .exp_avg_sq = raw_rounding_noise(kSeed + 67)};
  for (const bool definition : {false, true}) {
    const auto tensors = known_tensors();
    definition ? stochastic_adamw_reference_(tensors, kNumbers, noise) : stochastic_adamw_(tensors, kNumbers, noise);
    EXPECT_THAT(bits_of(tensors.value), ElementsAre(0x3f80, 0xbf00, 0x3e80, 0x3fff));
    const auto m = at::tensor({0.019, -0.002, 0.003, 0.005}, at::kDouble);
    const auto v = at::tensor({0.001009, 0.002038, 0.003087, 2.5e-6}, at::kDouble);
    EXPECT_TRUE(at::allclose(tensors.exp_avg.to(at::kDouble), m, 1e-6, 1e-9)) << tensors.exp_avg;  // float32
    EXPECT_TRUE(at::allclose(tensors.exp_avg_sq.to(at::kDouble), v, 1e-6, 0)) << tensors.exp_avg_sq;
  }
}

StochasticAdamWTensors some_tensors(at::ScalarType grad, at::ScalarType state) {
  const auto wave = [](double a, double b) { return at::linspace(0, b, 1003, at::kDouble).sin() * a; };
  return {
      .value = wave(2, 50).to(at::kBFloat16),
      .grad = wave(0.3, 33).to(grad),
      .exp_avg = wave(0.1, 7).to(state),
      .exp_avg_sq = wave(0.05, 13).square().to(state)};
}

// On every instruction set and for all dtypes: the float64 result lies between the neighbours of the stored value, and
// the bits are those of the ATen definition except for one in a hundred, where the last bit of float32 changes the
// rounding.
TEST(StochasticAdamWStep, EqualsFloat64AndItsDefinition) {
  const StochasticAdamWNoise noise{
      .value = rounding_noise(1, 3, "w"),
      .exp_avg = rounding_noise(1, 3, "m"),
      .exp_avg_sq = rounding_noise(1, 3, "v")};
  StochasticAdamWNumbers n = kNumbers;
  n.grad_divisor = 3;
  n.eps = 0.1;  // the roots added to it are below 1, so that eps has a visible effect
  for (const auto grad : {at::kFloat, at::kBFloat16}) {
    for (const auto state : {at::kFloat, at::kBFloat16}) {
      const auto start = some_tensors(grad, state);
      const auto g = start.grad.to(at::kDouble) / 3;
      const auto m = start.exp_avg.to(at::kDouble) * n.beta1 + g * (1 - n.beta1);
      const auto v = start.exp_avg_sq.to(at::kDouble) * n.beta2 + g * g * (1 - n.beta2);
      const auto p = start.value.to(at::kDouble) * (1 - n.lr * n.weight_decay) -
                     n.lr * (m / (1 - std::pow(n.beta1, 3))) / ((v / (1 - std::pow(n.beta2, 3))).sqrt() + n.eps);
      const auto expected = some_tensors(grad, state);
      stochastic_adamw_reference_(expected, n, noise);
      for (const ops::Arch arch : supported_archs()) {
        const ops::ArchScope scope(arch);
        const auto t = some_tensors(grad, state);
        stochastic_adamw_(t, n, noise);
        // A unit in the last place is at most 2^-7 of the value; the error of float32 itself is 1e-6.
        const double narrow = 1.0 / 128;
        const auto close = [](const at::Tensor& a, const at::Tensor& b, double relative) {
          return (a.to(at::kDouble) - b).abs().le(b.abs() * relative + 1e-7).all().item<bool>();
        };
        EXPECT_TRUE(close(t.value, p, narrow));
        EXPECT_TRUE(close(t.exp_avg, m, state == at::kFloat ? 1e-6 : narrow));
        EXPECT_TRUE(close(t.exp_avg_sq, v, state == at::kFloat ? 1e-6 : narrow));
        EXPECT_LT(t.value.ne(expected.value).sum().item<int64_t>(), 10);
        if (state == at::kBFloat16) {
          EXPECT_LT(t.exp_avg.ne(expected.exp_avg).sum().item<int64_t>(), 10);
          EXPECT_LT(t.exp_avg_sq.ne(expected.exp_avg_sq).sum().item<int64_t>(), 10);
        }
      }
    }
  }
}

TEST(StochasticAdamWStep, RefusesInvalidTensors) {
  const auto error = [](const StochasticAdamWTensors& tensors) {
    return error_of([&] { stochastic_adamw_(tensors, kNumbers, {}); });
  };
  auto tensors = known_tensors();
  tensors.value = tensors.value.to(at::kFloat);
  EXPECT_THAT(error(tensors), HasSubstr("the target must be contiguous and bfloat16, found Float [4]"));
  tensors = known_tensors();
  tensors.grad = at::zeros({5});
  EXPECT_THAT(error(tensors), HasSubstr("the gradient must be"));
  tensors = known_tensors();
  tensors.exp_avg = tensors.exp_avg.to(at::kBFloat16);
  EXPECT_THAT(error(tensors), HasSubstr("they must agree"));
}

}  // namespace
}  // namespace lehr::optim

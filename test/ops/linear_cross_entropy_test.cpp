// linear_cross_entropy, the language-model loss in chunks, compared with its definition on all logits.
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lehr/meter/memory_meter.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/label_rows.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

Operator fast(const at::Tensor& labels) {
  return [labels](const Tensors& in) -> Tensors { return {linear_cross_entropy(in[0], in[1], labels)}; };
}
Operator definition(const at::Tensor& labels) {
  return
      [labels](const Tensors& in) -> Tensors { return {reference::linear_cross_entropy(in[0], in[1], labels, -100)}; };
}

at::Tensor random_labels(int64_t rows, int64_t vocabulary, double ignored) {
  const at::Tensor labels = at::randint(vocabulary, {rows}, at::kLong);
  return labels.masked_fill(at::rand({rows}) < ignored, -100);
}

Tensors inputs(int64_t rows, int64_t hidden, int64_t vocabulary, at::ScalarType type) {
  return {random_tensor({rows, hidden}, type), random_tensor({vocabulary, hidden}, type, 0.3)};
}

// In bfloat16 the operator rounds its logits; the definition computes them in float64.
void expect_close(const at::Tensor& labels, const Tensors& in, const std::string& what, std::vector<bool> frozen = {}) {
  if (in[0].scalar_type() != at::kBFloat16) {
    expect_equal_to_definition(what, fast(labels), definition(labels), in, std::move(frozen), 4);
    return;
  }
  frozen.resize(2);
  const at::Tensor incoming = at::randn({in[0].size(0)}, at::kDouble);
  const Outcome actual = run(fast(labels), in, frozen, {incoming});
  const Outcome expected = run(definition(labels), {in[0].to(at::kDouble), in[1].to(at::kDouble)}, frozen, {incoming});
  EXPECT_LE(worst_error(actual.values[0], expected.values[0]), 0.02) << what;
  for (size_t i = 0; i < 2; ++i) {
    if (!frozen[i]) {
      EXPECT_LE(worst_error(actual.gradients[i], expected.gradients[i]), 0.03) << what << ", gradient " << i;
    }
  }
}

TEST(LinearCrossEntropy, EqualsItsDefinitionWithUnevenGradients) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const auto& [rows, hidden, vocabulary] : {std::tuple{1, 1, 1}, {7, 17, 127}, {130, 32, 4099}}) {
      for (const double ignored : {0.0, 0.4}) {
        expect_close(random_labels(rows, vocabulary, ignored), inputs(rows, hidden, vocabulary, type), where);
      }
    }
  });
}

// Rows that rise, fall, are constant, and have ranges of -inf before, in between and behind, whose gradient is exactly
// zero. 300,000 logits are more than the usual pieces of a row.
TEST(CrossEntropyOfLogits, EqualsItsDefinitionWhereverTheGreatestLogitIs) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const int64_t size : {3001, 300'000}) {
      const at::Tensor rising = at::linspace(-30, 30, size, at::kDouble);
      at::Tensor logits = at::stack({rising, -rising, 0 * rising, rising, -rising});
      for (const int64_t row : {3, 4}) {
        for (const int64_t begin : {int64_t{0}, size / 2, size - 600}) {
          logits[row].narrow(0, begin, 600).fill_(-std::numeric_limits<double>::infinity());
        }
      }
      logits = logits.to(type);
      const at::Tensor labels = at::tensor({size - 1, size / 3, int64_t{7}, size / 3, size - 601}, at::kLong);
      const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
      const at::Tensor factors = at::tensor({1.0, 0.5, -2.0, 1.0, 3.0}, at::TensorOptions(wide));
      const at::Tensor exact = at::log_softmax(logits, 1, at::kDouble);
      const at::Tensor at_labels = exact.gather(1, labels.unsqueeze(1)).squeeze(1);
      const at::Tensor gradient = factors.unsqueeze(1) * (exact.exp() - at::one_hot(labels, size));
      // Differences of logits, up to 60, are rounded before they are exponentiated.
      const double relative = type == at::kDouble ? 1e-13 : 1e-5;
      for (const bool wanted : {false, true}) {
        const at::Tensor x = logits.clone(), losses = at::empty({5}, at::TensorOptions(wide));
        cross_entropy_(x, labels, losses, wanted, factors);
        EXPECT_TRUE(at::allclose(losses.to(at::kDouble), -at_labels, relative, relative)) << where << ", " << size;
        if (!wanted) {
          EXPECT_TRUE(at::equal(x, logits)) << where << ", " << size;
          continue;
        }
        const double of_result = type == at::kBFloat16 ? 0x1p-8 : relative;
        EXPECT_TRUE(at::allclose(x.to(at::kDouble), gradient, of_result, 1e-20)) << where << ", " << size;
        EXPECT_TRUE(at::equal(x.eq(0).logical_and(logits.eq(-INFINITY)), logits.eq(-INFINITY)))
            << where << ", " << size;
      }
    }
  });
}

TEST(LinearCrossEntropy, EqualsItsDefinitionOverManyChunks) {
  // 1,100 rows of 8,300 logits: three chunks in float32, five in float64, two in bfloat16. The matmuls sum 8,300
  // float32 terms in one pass, which costs more than the usual tolerance.
  for (const at::ScalarType type : all_types()) {
    const Tensors in = inputs(1100, 8, 8300, type);
    const at::Tensor labels = random_labels(1100, 8300, 0.1);
    expect_close(labels, in, c10::toString(type));
    for (const bool mean : {false, true}) {
      const auto loss = [&](const Operator& op) -> Operator {
        return [op, mean](const Tensors& x) -> Tensors {
          const at::Tensor losses = op(x)[0];
          return {mean ? losses.sum() / 941 : losses.sum()};
        };
      };
      if (type != at::kBFloat16) {
        expect_equal_to_definition("uniform", loss(fast(labels)), loss(definition(labels)), in, {}, 4);
      }
    }
  }
}

// The head of Qwen3 0.6B, on meta tensors that allocate as on the CPU.
TEST(LinearCrossEntropy, NeedsAtMost256MegabytesBesideWeightAndGradient) {
  constexpr int64_t kWidth = 1024, kVocabulary = 151936;
  const OnMeta on_meta;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions(at::kMeta).dtype(type);
    const at::Tensor weight = at::empty({kVocabulary, kWidth}, options).set_requires_grad(true);
    for (const int64_t tokens : {1024, 16384}) {
      const at::Tensor hidden = at::empty({tokens, kWidth}, options).set_requires_grad(true);
      const at::Tensor labels = at::empty({tokens}, options.dtype(at::kLong));
      const MemoryMeter meter(at::kMeta);
      linear_cross_entropy(hidden, weight, labels).sum().backward();
      const int64_t per_token = kWidth * static_cast<int64_t>(hidden.element_size()) + 64;  // gradient, label, loss
      const int64_t beside = meter.peak() - static_cast<int64_t>(weight.nbytes()) - tokens * per_token;
      EXPECT_LE(beside, 256'000'000) << type << ", " << tokens << " tokens";
      weight.mutable_grad() = at::Tensor();
    }
  }
}

TEST(LinearCrossEntropy, TakesFewChunksOfALargeVocabulary) {
  constexpr int64_t kVocabulary = 151936;
  EXPECT_EQ(chunk_rows(1024, kVocabulary, 4, false, kLogitsBytes), 348) << "three chunks, of whole panels of 12 rows";
  EXPECT_EQ(chunk_rows(1024, kVocabulary, 2, false, kLogitsBytes), 512);
  EXPECT_EQ(chunk_rows(100, kVocabulary, 4, false, kLogitsBytes), 100) << "one chunk";
  EXPECT_EQ(chunk_rows(1024, 32768, 4, false, kLogitsBytes), 512) << "an efficient number of rows";
  EXPECT_EQ(chunk_rows(100, 1 << 30, 4, false, kLogitsBytes), 1) << "never none";
  EXPECT_EQ(chunk_rows(1024, kVocabulary, 4, true, kLogitsBytes), 512) << "a GPU has its own limit";
}

TEST(LinearCrossEntropy, ComputesOnlyTheRequiredGradients) {
  for (const double ignored : {0.0, 0.5}) {
    const at::Tensor labels = random_labels(21, 50, ignored);
    const Tensors in = inputs(21, 12, 50, at::kDouble);
    expect_close(labels, in, "frozen hidden", {true, false});
    expect_close(labels, in, "frozen weight", {false, true});
    expect_close(labels, in, "all frozen", {true, true});
  }
}

TEST(LinearCrossEntropy, IsZeroWithZeroGradientsWhereEveryLabelIsIgnored) {
  at::Tensor hidden = random_tensor({5, 4}, at::kFloat).set_requires_grad(true);
  at::Tensor weight = random_tensor({9, 4}, at::kFloat).set_requires_grad(true);
  const at::Tensor losses = linear_cross_entropy(hidden, weight, at::full({5}, -100, at::kLong));
  EXPECT_TRUE(at::equal(losses, at::zeros({5})));
  losses.sum().backward();
  EXPECT_TRUE(at::equal(hidden.grad(), at::zeros({5, 4})));
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({9, 4})));
}

TEST(LinearCrossEntropy, AcceptsZeroRowsAndAnotherIgnoreIndex) {
  const at::Tensor weight = random_tensor({9, 4}, at::kFloat);
  EXPECT_EQ(linear_cross_entropy(at::ones({0, 4}), weight, at::empty({0}, at::kLong)).numel(), 0);
  const at::Tensor hidden = random_tensor({3, 4}, at::kFloat);
  const at::Tensor labels = at::tensor({3, 8, 3}, at::kLong);
  const at::Tensor losses = linear_cross_entropy(hidden, weight, labels, 3);
  EXPECT_EQ(losses[0].item<float>(), 0);
  EXPECT_GT(losses[1].item<float>(), 0);
}

TEST(LinearCrossEntropy, AcceptsAUniformGradientOfTheCountedRows) {
  const at::Tensor labels = random_labels(30, 40, 0.3);
  const at::Tensor factors = labels.ne(-100).to(at::kDouble) * 0.7;
  const auto scaled = [&](const Operator& op) -> Operator {
    return [=](const Tensors& in) -> Tensors { return {op(in)[0] * factors}; };
  };
  expect_equal_to_definition(
      "masked", scaled(fast(labels)), scaled(definition(labels)), inputs(30, 8, 40, at::kDouble), {}, 4);
}

TEST(LinearCrossEntropy, HasTheSameGradientsInASecondBackward) {
  const Tensors in = inputs(11, 6, 40, at::kDouble);
  at::Tensor hidden = in[0].detach().set_requires_grad(true);
  at::Tensor weight = in[1].detach().set_requires_grad(true);
  const at::Tensor loss = linear_cross_entropy(hidden, weight, random_labels(11, 40, 0.2)).sum() * 0.37;
  const auto first = torch::autograd::grad({loss}, {hidden, weight}, {}, true);
  const auto kept = first[1].clone();
  const auto second = torch::autograd::grad({loss}, {hidden, weight});
  EXPECT_TRUE(at::equal(first[1], kept)) << "the first result was changed by the second pass";
  EXPECT_LE(worst_error(second[0], first[0]), 1e-13);
  EXPECT_LE(worst_error(second[1], first[1]), 1e-13);
}

TEST(LinearCrossEntropy, StaysFiniteForExtremeLogits) {
  everywhere([](at::ScalarType type, const std::string& where) {
    at::Tensor hidden = at::full({2, 1}, 1000.0, type).set_requires_grad(true);
    const at::Tensor weight = at::tensor({-1.0, 0.0, 1.0}).to(type).view({3, 1});
    const at::Tensor losses = linear_cross_entropy(hidden, weight, at::tensor({2, 0}, at::kLong));
    EXPECT_EQ(losses[0].item<double>(), 0) << where;
    EXPECT_EQ(losses[1].item<double>(), 2000) << where;
    losses.sum().backward();
    EXPECT_EQ(hidden.grad()[0].item<double>(), 0) << where;
    EXPECT_EQ(hidden.grad()[1].item<double>(), 2) << where;
  });
}

TEST(LinearCrossEntropy, AcceptsLogitsOfMinusInfinity) {
  everywhere([](at::ScalarType type, const std::string& where) {
    at::Tensor weight = at::zeros({700, 1}, type);  // the first 600 logits are -inf
    weight.narrow(0, 0, 600).fill_(-std::numeric_limits<double>::infinity());
    weight.set_requires_grad(true);
    const at::Tensor losses = linear_cross_entropy(at::ones({1, 1}, type), weight, at::tensor({650}, at::kLong));
    EXPECT_NEAR(losses.item<double>(), std::log(100.0), 1e-6) << where;  // rounding of float32
    losses.sum().backward();
    EXPECT_EQ(weight.grad().narrow(0, 0, 600).abs().max().item<double>(), 0) << where;
    EXPECT_NEAR(weight.grad()[600].item<double>(), 0.01, 1e-4) << where;  // rounding of bfloat16
  });
}

// A cap of 0.7 bends logits of about 1.
TEST(LinearCrossEntropy, OfCappedLogitsEqualsItsDefinition) {
  constexpr double kCap = 0.7;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor labels = random_labels(130, 4099, 0.3);
    const Operator capped = [&](const Tensors& in) -> Tensors {
      return {linear_cross_entropy(in[0], in[1], labels, -100, kCap)};
    };
    const Operator expected = [&](const Tensors& in) -> Tensors {
      const at::Tensor logits = (at::linear(in[0], in[1]) / kCap).tanh() * kCap;
      return {at::cross_entropy_loss(logits, labels, {}, at::Reduction::None, -100)};
    };
    expect_equal_to_definition("uneven", capped, expected, inputs(130, 32, 4099, type), {}, 4);
    const auto sum = [](const Operator& op) -> Operator {
      return [op](const Tensors& in) -> Tensors { return {op(in)[0].sum()}; };
    };
    expect_equal_to_definition("uniform", sum(capped), sum(expected), inputs(130, 32, 4099, type), {}, 4);
  }
  EXPECT_THAT(
      error_of([] {
        linear_cross_entropy(at::ones({1, 4}), at::ones({9, 4}), at::zeros({1}, at::kLong), -100, 0);
      }),
      testing::HasSubstr("softcap: expected a positive number, found 0"));
}

TEST(LinearCrossEntropy, NamesALabelOutOfRange) {
  const auto message = [](int64_t label) {
    return error_of([=] {
      linear_cross_entropy(at::ones({2, 4}), at::ones({9, 4}), at::tensor({1L, label}, at::kLong));
    });
  };
  EXPECT_THAT(message(9), testing::HasSubstr("labels[1]: expected 0 to 8 or -100 (ignored), found 9"));
  EXPECT_THAT(message(-1), testing::HasSubstr("found -1"));
}

}  // namespace
}  // namespace lehr::ops::test

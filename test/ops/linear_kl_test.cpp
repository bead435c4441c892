// linear_kl, the distillation loss in chunks, compared with its definition on all logits of both models.
#include "lehr/ops/linear_kl/linear_kl.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lehr/meter/memory_meter.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

constexpr LinearKlOptions kWarm{.temperature = 1.7, .kl_weight = 0.8, .nll_weight = 0.3};

at::Tensor random_labels(int64_t rows, int64_t vocabulary, double ignored) {
  const at::Tensor labels = at::randint(vocabulary, {rows}, at::kLong);
  return labels.masked_fill(at::rand({rows}) < ignored, -100);
}

// Student's hidden and weight, teacher's hidden and weight; the teacher is wider.
Tensors inputs(int64_t rows, int64_t hidden, int64_t vocabulary, at::ScalarType type) {
  const int64_t wider = hidden + 3;
  return {
      random_tensor({rows, hidden}, type),
      random_tensor({vocabulary, hidden}, type, 0.3),
      random_tensor({rows, wider}, type),
      random_tensor({vocabulary, wider}, type, 0.3)};
}

using Definition = decltype(&linear_kl);

// The loss and, without gradients, the other values.
Operator values_of(Definition op, const at::Tensor& labels, const LinearKlOptions& options) {
  return [=](const Tensors& in) -> Tensors {
    const LinearKl values = op(in[0], in[1], {.hidden = in[2], .weight = in[3]}, labels, options);
    return {values.loss, values.kl.detach(), values.nll.detach(), values.agrees.detach()};
  };
}

// In bfloat16 the operator rounds its logits, so that the most likely token may be another one; the definition computes
// them in float64.
void expect_close(
    const at::Tensor& labels,
    const Tensors& in,
    const LinearKlOptions& options,
    const std::string& what,
    std::vector<bool> frozen = {false, false, true, true}) {
  const Operator fast = values_of(linear_kl, labels, options);
  const Operator definition = values_of(reference::linear_kl, labels, options);
  if (in[0].scalar_type() != at::kBFloat16) {
    // Differences of logarithms of float32 probabilities lose two digits more than the probabilities.
    expect_equal_to_definition(what, fast, definition, in, std::move(frozen), 8);
    return;
  }
  Tensors wide;
  for (const at::Tensor& tensor : in) {
    wide.push_back(tensor.to(at::kDouble));
  }
  const at::Tensor incoming = at::randn({in[0].size(0)}, at::kDouble);
  const at::Tensor none = at::zeros_like(incoming);
  const Outcome actual = run(fast, in, frozen, {incoming, none, none, none});
  const Outcome expected = run(definition, wide, frozen, {incoming, none, none, none});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(worst_error(actual.values[i], expected.values[i]), 0.03) << what << ", value " << i;
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!frozen[i]) {
      EXPECT_LE(worst_error(actual.gradients[i], expected.gradients[i]), 0.04) << what << ", gradient " << i;
    }
  }
}

TEST(LinearKl, EqualsItsDefinitionWithUnevenGradients) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const auto& [rows, hidden, vocabulary] : {std::tuple{1, 1, 1}, {7, 17, 127}, {131, 32, 4099}}) {
      for (const double ignored : {0.0, 0.4}) {
        const at::Tensor labels = random_labels(rows, vocabulary, ignored);
        const Tensors in = inputs(rows, hidden, vocabulary, type);
        expect_close(labels, in, {}, where);
        expect_close(labels, in, kWarm, where + ", warm");
      }
    }
  });
}

// 1,101 rows of 8,301 logits of two models: three chunks and more, each in pieces.
TEST(LinearKl, EqualsItsDefinitionOverManyChunks) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const Tensors in = inputs(1101, 8, 8301, type);
    const at::Tensor labels = random_labels(1101, 8301, 0.1);
    const auto mean = [&](Definition op) -> Operator {
      return [=](const Tensors& x) -> Tensors { return {values_of(op, labels, kWarm)(x)[0].sum() / 941}; };
    };
    const std::vector<bool> frozen{false, false, true, true};
    expect_equal_to_definition("mean", mean(linear_kl), mean(reference::linear_kl), in, frozen, 8);
    expect_close(labels, in, kWarm, c10::toString(type));
  }
}

// Central differences, which know nothing of the definition's derivative.
TEST(LinearKl, HasTheGradientsOfFiniteDifferences) {
  const at::Tensor labels = random_labels(5, 11, 0.3);
  const Tensors in = inputs(5, 4, 11, at::kDouble);
  const auto loss = [&](const at::Tensor& hidden, const at::Tensor& weight) {
    return linear_kl(hidden, weight, {.hidden = in[2], .weight = in[3]}, labels, kWarm).loss.sum();
  };
  Tensors leaves{in[0].clone().set_requires_grad(true), in[1].clone().set_requires_grad(true)};
  loss(leaves[0], leaves[1]).backward();
  at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (const at::Tensor& leaf : leaves) {
    at::Tensor flat = leaf.view(-1);
    for (int64_t i = 0; i < flat.size(0); ++i) {
      const double value = flat[i].item<double>();
      flat[i] = value + kStep;
      const double above = loss(leaves[0], leaves[1]).item<double>();
      flat[i] = value - kStep;
      const double below = loss(leaves[0], leaves[1]).item<double>();
      flat[i] = value;
      // kStep^2 times third derivatives, which are about 1
      EXPECT_NEAR(leaf.grad().view(-1)[i].item<double>(), (above - below) / (2 * kStep), 1e-8);
    }
  }
}

TEST(LinearKl, IsZeroWithoutGradientsForTheTeacherItself) {
  everywhere([](at::ScalarType type, const std::string& where) {
    const Tensors in = inputs(9, 16, 301, type);
    for (const double temperature : {1.0, 2.5}) {
      at::Tensor hidden = in[0].clone().set_requires_grad(true), weight = in[1].clone().set_requires_grad(true);
      const at::Tensor labels = random_labels(9, 301, 0);
      const LinearKl values =
          linear_kl(hidden, weight, {.hidden = in[0], .weight = in[1]}, labels, {.temperature = temperature});
      values.loss.sum().backward();
      EXPECT_EQ(values.kl.abs().max().item<double>(), 0) << where;
      EXPECT_EQ(values.agrees.min().item<double>(), 1) << where;
      EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0) << where;
      EXPECT_EQ(weight.grad().abs().max().item<double>(), 0) << where;
    }
  });
}

TEST(LinearKl, HasTheLikelihoodOfTheLanguageModelLoss) {
  const Tensors in = inputs(33, 16, 301, at::kDouble);
  const at::Tensor labels = random_labels(33, 301, 0.3);
  const at::Tensor expected = linear_cross_entropy(in[0], in[1], labels);
  for (const double temperature : {1.0, 3.0}) {
    const LinearKl values =
        linear_kl(in[0], in[1], {.hidden = in[2], .weight = in[3]}, labels, {.temperature = temperature});
    EXPECT_LE(worst_error(values.nll, expected), 1e-13) << temperature;  // rounding of float64
  }
}

TEST(LinearKl, ComputesOnlyTheRequiredGradients) {
  const at::Tensor labels = random_labels(21, 50, 0.5);
  const Tensors in = inputs(21, 12, 50, at::kDouble);
  expect_close(labels, in, {}, "frozen hidden", {true, false, true, true});
  expect_close(labels, in, {}, "frozen weight", {false, true, true, true});
  expect_close(labels, in, {}, "all frozen", {true, true, true, true});
}

TEST(LinearKl, HasTheSameGradientsInASecondBackward) {
  const Tensors in = inputs(11, 6, 41, at::kDouble);
  at::Tensor hidden = in[0].clone().set_requires_grad(true), weight = in[1].clone().set_requires_grad(true);
  const TeacherHead teacher{.hidden = in[2], .weight = in[3]};
  const at::Tensor loss = linear_kl(hidden, weight, teacher, random_labels(11, 41, 0.2), kWarm).loss.sum() * 0.37;
  const auto first = torch::autograd::grad({loss}, {hidden, weight}, {}, true);
  const auto second = torch::autograd::grad({loss}, {hidden, weight});
  EXPECT_LE(worst_error(second[0], first[0]), 1e-13);  // rounding of float64
  EXPECT_LE(worst_error(second[1], first[1]), 1e-13);
}

TEST(LinearKl, IsZeroWithZeroGradientsWhereEveryLabelIsIgnored) {
  const Tensors in = inputs(5, 4, 9, at::kFloat);
  at::Tensor hidden = in[0].clone().set_requires_grad(true), weight = in[1].clone().set_requires_grad(true);
  const LinearKl values = linear_kl(hidden, weight, {.hidden = in[2], .weight = in[3]}, at::full({5}, -100, at::kLong));
  EXPECT_TRUE(at::equal(values.kl, at::zeros({5})));
  values.loss.sum().backward();
  EXPECT_TRUE(at::equal(hidden.grad(), at::zeros({5, 4})));
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({9, 4})));
}

TEST(LinearKl, AcceptsTokensThatTheTeacherExcludes) {
  at::Tensor teacher_weight = at::zeros({700, 1});
  teacher_weight.narrow(0, 0, 600).fill_(-std::numeric_limits<double>::infinity());
  at::Tensor weight = at::zeros({700, 1}).set_requires_grad(true);
  const LinearKl values = linear_kl(
      at::ones({1, 1}), weight, {.hidden = at::ones({1, 1}), .weight = teacher_weight}, at::tensor({650}, at::kLong));
  EXPECT_NEAR(values.kl.item<double>(), std::log(7.0), 1e-6);  // rounding of float32
  values.loss.sum().backward();
  EXPECT_NEAR(weight.grad()[0].item<double>(), 1.0 / 700, 1e-8);
  EXPECT_NEAR(weight.grad()[650].item<double>(), 1.0 / 700 - 1.0 / 100, 1e-8);
}

// The head of Qwen3 0.6B, on meta tensors that allocate as on the CPU. The teacher has another width and dtype.
TEST(LinearKl, NeedsAtMost256MegabytesBesideWeightAndGradient) {
  constexpr int64_t kWidth = 1024, kVocabulary = 151936;
  const OnMeta on_meta;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions(at::kMeta).dtype(type);
    const at::Tensor weight = at::empty({kVocabulary, kWidth}, options).set_requires_grad(true);
    for (const int64_t tokens : {1024, 8192}) {
      const at::Tensor hidden = at::empty({tokens, kWidth}, options).set_requires_grad(true);
      const at::Tensor labels = at::empty({tokens}, options.dtype(at::kLong));
      const TeacherHead teacher{
          .hidden = at::empty({tokens, 2048}, options.dtype(at::kBFloat16)),
          .weight = at::empty({kVocabulary, 2048}, options.dtype(at::kBFloat16))};
      const MemoryMeter meter(at::kMeta);
      linear_kl(hidden, weight, teacher, labels, {.temperature = 2}).loss.sum().backward();
      const int64_t per_token = kWidth * static_cast<int64_t>(hidden.element_size()) + 64;  // gradient, label, values
      const int64_t beside = meter.peak() - static_cast<int64_t>(weight.nbytes()) - tokens * per_token;
      EXPECT_LE(beside, 256'000'000) << type << ", " << tokens << " tokens";
      weight.mutable_grad() = at::Tensor();
    }
  }
}

// Both models' caps bend logits of about 1.
TEST(LinearKl, OfCappedLogitsEqualsItsDefinition) {
  LinearKlOptions options = kWarm;
  options.softcap = 0.7;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor labels = random_labels(131, 4099, 0.3);
    const auto capped = [&](Definition op) -> Operator {
      return [=](const Tensors& in) -> Tensors {
        return {op(in[0], in[1], {.hidden = in[2], .weight = in[3], .softcap = 0.9}, labels, options).loss};
      };
    };
    const Tensors in = inputs(131, 16, 4099, type);
    expect_equal_to_definition(
        c10::toString(type), capped(linear_kl), capped(reference::linear_kl), in, {false, false, true, true}, 8);
  }
}

TEST(LinearKl, NamesWhatDoesNotFit) {
  const Tensors in = inputs(2, 4, 9, at::kFloat);
  const auto message = [&](const TeacherHead& teacher, const LinearKlOptions& options, int64_t label) {
    return error_of([&] { linear_kl(in[0], in[1], teacher, at::tensor({1L, label}, at::kLong), options); });
  };
  const TeacherHead teacher{.hidden = in[2], .weight = in[3]};
  EXPECT_THAT(
      message({.hidden = in[2], .weight = in[3].narrow(0, 0, 8)}, {}, 1),
      testing::HasSubstr("expected the teacher's hidden (2, its hidden size) and weight (9, its hidden size), found "
                         "2x7 and 8x7"));
  EXPECT_THAT(message(teacher, {.temperature = 0}, 1), testing::HasSubstr("expected a temperature above 0, found 0"));
  EXPECT_THAT(message(teacher, {}, 9), testing::HasSubstr("labels[1]: expected 0 to 8 or -100 (ignored), found 9"));
}

}  // namespace
}  // namespace lehr::ops::test

// The chunked scan of the gated delta rule and of the state-space dual, compared with the recurrence.
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lehr/base/parallel.h"
#include "test/ops/delta_inputs.h"

namespace lehr::ops::test {
namespace {

void expect_equal_to_recurrence(
    const std::string& what, const Tensors& inputs, const at::Tensor& lengths, bool with_state, StateUpdate update) {
  const auto run = [&](auto rule) -> Operator {
    return [=](const Tensors& in) -> Tensors {
      const GatedDelta result = rule(inputs_of(in, lengths, with_state, update));
      return {result.output, result.final_state};
    };
  };
  // In float32, errors of a chunk's corrections add up over the chunks that the state passes.
  expect_equal_to_definition(
      what + name_of(update),
      run(gated_delta_rule),
      run(reference::gated_delta_rule),
      inputs,
      {false, false, false, false, false, !with_state},
      inputs[0].scalar_type() == at::kFloat ? 4 : 1);
}

TEST(GatedDeltaRule, EqualsTheRecurrenceForAllSizesAndTypes) {
  everywhere([](at::ScalarType type, const std::string& where) {
    for (const DeltaSizes& sizes :
         {DeltaSizes{1, 1, 1, 1, 2, 1},
          {2, 5, 1, 3, 4, 3},
          {1, 64, 2, 2, 8, 8},
          {2, 130, 3, 3, 5, 33},
          {1, 77, 1, 2, 40, 7}}) {
      for (const bool with_state : {false, true}) {
        for (const StateUpdate update : kUpdates) {
          expect_equal_to_recurrence(
              where + " T " + std::to_string(sizes.tokens), random_inputs(sizes, type), {}, with_state, update);
        }
      }
    }
  });
}

TEST(GatedDeltaRule, EqualsTheRecurrenceOfPackedDocuments) {
  everywhere([](at::ScalarType type, const std::string& where) {
    const at::Tensor lengths = at::tensor({0, 1, 66, 130, 200, 200, 200 + 128, 400}, at::kInt);
    for (const StateUpdate update : kUpdates) {
      expect_equal_to_recurrence(where, random_inputs({2, 200, 1, 2, 6, 5}, type), lengths, true, update);
    }
  });
}

// The duality: with L_tj the product of the decays after j up to t, outputs are (L * C B^T) (dt x) and C_t times what
// is left of the initial state.
TEST(GatedDeltaRule, ThatAddsEqualsMaskedAttention) {
  const int64_t tokens = 70;
  const Tensors in = random_inputs({2, tokens, 2, 4, 6, 5}, at::kDouble);
  const at::Tensor sums = in[3].cumsum(1).transpose(1, 2);  // (B, H, T)
  const at::Tensor seen = at::ones({tokens, tokens}, at::kBool).tril();
  const at::Tensor mask = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(seen.logical_not(), -INFINITY).exp();
  const at::Tensor c = in[0].repeat_interleave(2, 2), b = in[1].repeat_interleave(2, 2);
  const at::Tensor scores = at::einsum("bthn,bjhn->bhtj", {c, b}) * mask;
  const at::Tensor own = at::einsum("bhtj,bjhp->bthp", {scores, in[2] * in[4].unsqueeze(-1)});
  const at::Tensor of_state = at::einsum("bthn,bhnp,bht->bthp", {c, in[5], sums.exp()});
  EXPECT_LE(worst_error(gated_delta_rule(inputs_of(in, {}, true, StateUpdate::add)).output, own + of_state), 1e-12);
}

TEST(GatedDeltaRule, EqualsSeparateDocuments) {
  for (const StateUpdate update : kUpdates) {
    const std::vector<int> borders{0, 3, 70, 134, 135, 150};
    const Tensors in = random_inputs({1, 150, 2, 4, 6, 5}, at::kDouble);
    const at::Tensor together = gated_delta_rule(inputs_of(in, at::tensor(borders, at::kInt), false, update)).output;
    double leak = 0;
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      Tensors own;
      for (size_t k = 0; k < 5; ++k) {
        own.push_back(in[k].slice(1, borders[i], borders[i + 1]));
      }
      own.push_back(in[5]);
      const at::Tensor alone = gated_delta_rule(inputs_of(own, {}, false, update)).output;
      EXPECT_LE(worst_error(together.slice(1, borders[i], borders[i + 1]), alone), 1e-12) << "document " << i;
      const at::Tensor leaking = gated_delta_rule(inputs_of(in, {}, false, update)).output;
      leak = std::max(leak, worst_error(leaking.slice(1, borders[i], borders[i + 1]), alone));
    }
    EXPECT_GT(leak, 0.1) << "the test would not see a state that is not reset";
  }
}

// The state between two calls carries values and gradients.
TEST(GatedDeltaRule, ContinuesFromAState) {
  for (const StateUpdate update : kUpdates) {
    const int64_t tokens = 150, cut = 83;
    for (const int64_t second : {tokens - cut, int64_t{1}}) {
      Tensors in = random_inputs({2, cut + second, 2, 2, 9, 4}, at::kDouble);
      for (at::Tensor& tensor : in) {
        tensor.requires_grad_();
      }
      const GatedDelta whole = gated_delta_rule(inputs_of(in, {}, true, update));
      Tensors parts[2];
      for (size_t k = 0; k < 5; ++k) {
        parts[0].push_back(in[k].narrow(1, 0, cut));
        parts[1].push_back(in[k].narrow(1, cut, second));
      }
      parts[0].push_back(in[5]);
      const GatedDelta begin = gated_delta_rule(inputs_of(parts[0], {}, true, update));
      parts[1].push_back(begin.final_state);
      const GatedDelta end = gated_delta_rule(inputs_of(parts[1], {}, true, update));
      const Tensors incoming{at::randn_like(whole.output), at::randn_like(whole.final_state)};
      const at::Tensor joined = at::cat({begin.output, end.output}, 1);
      EXPECT_LE(worst_error(joined, whole.output), 1e-12);
      EXPECT_LE(worst_error(end.final_state, whole.final_state), 1e-12);
      const auto expected = torch::autograd::grad({whole.output, whole.final_state}, in, incoming);
      const auto found = torch::autograd::grad({joined, end.final_state}, in, incoming);
      for (size_t k = 0; k < in.size(); ++k) {
        EXPECT_LE(worst_error(found[k], expected[k]), 1e-12) << "gradient " << k;
      }
    }
  }
}

TEST(GatedDeltaRule, GivesItsFinalStateAndItsGradientsAlone) {
  for (const StateUpdate update : kUpdates) {
    for (const bool with_state : {false, true}) {
      Tensors in = random_inputs({2, 100, 2, 4, 9, 5}, at::kDouble);
      const at::Tensor lengths = at::tensor({0, 30, 100, 170, 200}, at::kInt);
      for (at::Tensor& tensor : in) {
        tensor.requires_grad_();
      }
      in.resize(with_state ? 6 : 5);
      const auto inputs_with = [&](const Tensors& list) {
        return GatedDeltaInputs{
            list[0], list[1], list[2], list[3], list[4], with_state ? list[5] : at::Tensor(), lengths, update};
      };
      const GatedDelta whole = gated_delta_rule(inputs_with(in));
      const at::Tensor state = gated_delta_final_state(inputs_with(in));
      EXPECT_FALSE(state.requires_grad());
      EXPECT_TRUE(at::equal(state, whole.final_state));
      const Tensors incoming{at::randn_like(whole.output), at::randn_like(whole.final_state)};
      const auto expected = torch::autograd::grad({whole.output, whole.final_state}, in, incoming);
      const auto found = gated_delta_rule_backward(inputs_with(in), incoming[0], incoming[1]);
      ASSERT_EQ(found.size(), 6);
      EXPECT_EQ(found[5].defined(), with_state);
      for (size_t k = 0; k < in.size(); ++k) {
        EXPECT_TRUE(at::equal(found[k], expected[k])) << "gradient " << k;
      }
    }
  }
}

// float16 has no kernels.
TEST(GatedDeltaRule, WithoutKernelsHasTheGradientsOfTheDefinition) {
  for (const StateUpdate update : kUpdates) {
    Tensors in = random_inputs({1, 20, 1, 2, 4, 3}, at::kFloat);
    for (size_t k = 0; k < 3; ++k) {
      in[k] = in[k].to(at::kHalf);
    }
    for (at::Tensor& tensor : in) {
      tensor.requires_grad_();
    }
    for (const bool with_state : {false, true}) {
      const GatedDelta whole = reference::gated_delta_rule(inputs_of(in, {}, with_state, update));
      EXPECT_TRUE(at::equal(gated_delta_final_state(inputs_of(in, {}, with_state, update)), whole.final_state));
      const Tensors leaves(in.begin(), in.end() - (with_state ? 0 : 1));
      const Tensors incoming{at::randn_like(whole.output), at::randn_like(whole.final_state)};
      const auto expected = torch::autograd::grad({whole.output, whole.final_state}, leaves, incoming);
      const at::NoGradGuard as_in_backward;
      const auto found = gated_delta_rule_backward(inputs_of(in, {}, with_state, update), incoming[0], incoming[1]);
      for (size_t k = 0; k < leaves.size(); ++k) {
        EXPECT_TRUE(at::equal(found[k], expected[k])) << "gradient " << k;
      }
    }
  }
}

// Decays that underflow, none at all, corrections of full strength, keys that repeat, keys and queries of zero.
TEST(GatedDeltaRule, IsFiniteAndRightAtTheLimits) {
  for (const StateUpdate update : kUpdates) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor lengths;
      for (const double decay : {0.0, -30.0, -1000.0}) {
        Tensors in = random_inputs({1, 130, 1, 1, 4, 4}, type);
        in[3].fill_(decay);
        in[4].fill_(1);
        in[1].narrow(1, 10, 30).copy_(in[1].narrow(1, 10, 1).expand({1, 30, 1, 4}));
        in[0].narrow(1, 50, 3).zero_();
        in[1].narrow(1, 60, 3).zero_();
        const GatedDelta result = gated_delta_rule(inputs_of(in, lengths, true, update));
        EXPECT_TRUE(result.output.isfinite().all().item<bool>()) << decay;
        expect_equal_to_recurrence("decay " + std::to_string(decay), in, lengths, true, update);
      }
    }
  }
}

TEST(GatedDeltaRule, LeavesFrozenInputsWithoutGradient) {
  for (const StateUpdate update : kUpdates) {
    const Tensors inputs = random_inputs({1, 70, 1, 2, 4, 4}, at::kDouble);
    for (size_t frozen = 0; frozen < 6; ++frozen) {
      std::vector<bool> is_frozen(6, false);
      is_frozen[frozen] = true;
      expect_equal_to_definition(
          "frozen " + std::to_string(frozen),
          [update](const Tensors& in) -> Tensors { return {gated_delta_rule(inputs_of(in, {}, true, update)).output}; },
          [update](const Tensors& in) -> Tensors {
            return {reference::gated_delta_rule(inputs_of(in, {}, true, update)).output};
          },
          inputs,
          is_frozen);
    }
  }
}

TEST(GatedDeltaRule, RefusesOtherShapesAndTypes) {
  const auto found = [](size_t index, const at::Tensor& other) {
    Tensors in = random_inputs({1, 3, 2, 4, 5, 6}, at::kFloat);
    in[index] = other;
    return error_of([&] { gated_delta_rule({in[0], in[1], in[2], in[3], in[4], in[5]}); });
  };
  EXPECT_THAT(found(1, at::ones({1, 3, 2, 4})), testing::HasSubstr("found 1x3x2x5, 1x3x2x4 and 1x3x4x6"));
  EXPECT_THAT(found(2, at::ones({1, 3, 3, 6})), testing::HasSubstr("with Hv a multiple of Hk"));
  EXPECT_THAT(found(3, at::ones({1, 3, 2})), testing::HasSubstr("decay: expected (B, T, Hv) Float, found Float 1x3x2"));
  EXPECT_THAT(
      found(4, at::ones({1, 3, 4}, at::kDouble)), testing::HasSubstr("beta: expected (B, T, Hv) Float, found Double"));
  EXPECT_THAT(found(5, at::ones({1, 4, 5, 5})), testing::HasSubstr("initial_state: expected (B, Hv, K, V) Float"));
}

}  // namespace
}  // namespace lehr::ops::test

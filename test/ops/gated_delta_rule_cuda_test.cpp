// The CUDA path of the gated delta rule and of the state-space dual, compared with the recurrence: its kernels as loops
// on the host everywhere, and on a GPU if there is one.
#include <torch/csrc/autograd/autograd.h>

#include "lehr/ops/causal_conv/causal_conv.h"
#include "lehr/ops/gated_delta_rule/cuda.h"
#include "lehr/ops/gated_delta_rule/launches.h"
#include "test/ops/delta_inputs.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

class GatedDeltaRuleCuda : public OperatorKernelsTest {
 protected:
  template <class Rule>
  static Operator operator_of(
      Rule rule, const at::Tensor& lengths, bool with_state, StateUpdate update = StateUpdate::correct) {
    return [=](const Tensors& in) -> Tensors {
      const at::Tensor own = lengths.defined() ? lengths.to(in[0].device()) : lengths;
      const GatedDelta result = rule(inputs_of(in, own, with_state, update));
      return {result.output, result.final_state};
    };
  }

  void expect_equal_to_recurrence(
      const std::string& what,
      const Tensors& inputs,
      const at::Tensor& lengths,
      bool with_state,
      StateUpdate update,
      bool by_kernels = true) const {
    // In float32, errors of a chunk's corrections add up over the chunks that the state passes.
    expect_equal_to_definition(
        std::string(c10::toString(inputs[0].scalar_type())) + " " + what + name_of(update),
        here(operator_of(gated_delta_rule, lengths, with_state, update), by_kernels),
        operator_of(reference::gated_delta_rule, lengths, with_state, update),
        inputs,
        {false, false, false, false, false, !with_state},
        inputs[0].scalar_type() == at::kFloat ? 4 : 1);
  }
};

// Less than a chunk, one, several, a part of one; blocks of one to eight warps; several blocks of columns.
TEST_P(GatedDeltaRuleCuda, EqualsTheRecurrence) {
  for (const auto type : kKernelTypes) {
    for (const DeltaSizes& sizes :
         {DeltaSizes{1, 4, 1, 1, 2, 1},
          {2, 5, 1, 3, 4, 3},
          {1, 64, 2, 2, 8, 8},
          {2, 130, 3, 3, 5, 33},
          {1, 77, 1, 2, 40, 7},
          {1, 65, 1, 1, 128, 40}}) {
      for (const bool with_state : {false, true}) {
        for (const StateUpdate update : kUpdates) {
          expect_equal_to_recurrence(
              std::to_string(sizes.tokens) + " tokens", random_inputs(sizes, type), {}, with_state, update);
        }
      }
    }
  }
}

// The heads of Nemotron-H: groups of value heads, states of 128 x 64. Without corrections keys may have any size.
TEST_P(GatedDeltaRuleCuda, OfMamba2EqualsTheRecurrence) {
  const at::Tensor lengths = at::tensor({0, 30, 100, 128, 150, 300}, at::kInt);
  for (const auto type : kKernelTypes) {
    for (const DeltaSizes& sizes : {DeltaSizes{2, 150, 1, 4, 128, 64}, {2, 150, 2, 4, 131, 3}}) {
      for (const bool documents : {false, true}) {
        expect_equal_to_recurrence(
            "keys of " + std::to_string(sizes.size),
            random_inputs(sizes, type),
            documents ? lengths : at::Tensor(),
            !documents,
            StateUpdate::add);
      }
    }
  }
}

// Documents that end within a chunk and with it, several in one chunk, of one token, of several chunks, and none.
TEST_P(GatedDeltaRuleCuda, EqualsTheRecurrenceOfPackedDocuments) {
  const at::Tensor lengths = at::tensor({0, 1, 66, 70, 128, 200, 200, 200 + 128, 360, 361, 400}, at::kInt);
  for (const auto type : kKernelTypes) {
    for (const bool with_state : {false, true}) {
      for (const StateUpdate update : kUpdates) {
        expect_equal_to_recurrence("documents", random_inputs({2, 200, 1, 2, 6, 5}, type), lengths, with_state, update);
      }
    }
  }
}

// Values and gradients of documents by themselves. Those of the first and the last document are large, and would show
// in the others, of which two have strong decays before weak ones.
TEST_P(GatedDeltaRuleCuda, EqualsSeparateDocuments) {
  const std::vector<int> borders{0, 3, 70, 128, 132, 150};
  for (const StateUpdate update : kUpdates) {
    Tensors in = random_inputs({1, 150, 2, 4, 6, 5}, at::kFloat);
    in[2].narrow(1, 0, 3).mul_(1e4);
    in[2].narrow(1, 132, 18).mul_(1e4);
    in[3].narrow(1, 20, 80).sub_(50);
    const at::Tensor incoming = at::randn_like(in[2]);
    Tensors all;
    for (const at::Tensor& tensor : in) {
      all.push_back(there(tensor));
    }
    const GatedDeltaInputs packed = inputs_of(all, there(at::tensor(borders, at::kInt)), false, update);
    const at::Tensor output = gated_delta_rule(packed).output.cpu();
    const Tensors gradients = gated_delta_rule_backward(packed, there(incoming), {});
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      const auto own = [&](const at::Tensor& of_all) { return of_all.cpu().slice(1, borders[i], borders[i + 1]); };
      Tensors alone;
      for (size_t k = 0; k < 5; ++k) {
        alone.push_back(own(in[k]).to(at::kDouble).requires_grad_());
      }
      const at::Tensor expected = reference::gated_delta_rule(inputs_of(alone, {}, false, update)).output;
      const std::string what = "document " + std::to_string(i) + name_of(update);
      EXPECT_LE(worst_error(own(output), expected), 4 * tolerance(at::kFloat)) << what;
      const Tensors wanted = torch::autograd::grad({expected}, alone, {own(incoming).to(at::kDouble)});
      for (size_t k = 0; k < 5; ++k) {
        EXPECT_LE(worst_error(own(gradients[k]), wanted[k]), 8 * tolerance(at::kFloat)) << what << ", gradient " << k;
      }
    }
  }
}

// Decays that underflow, none at all, corrections of full strength, keys that repeat, keys and queries of zero.
TEST_P(GatedDeltaRuleCuda, IsFiniteAndRightAtTheLimits) {
  for (const double decay : {0.0, -30.0, -1000.0}) {
    Tensors in = random_inputs({1, 130, 1, 1, 4, 4}, at::kFloat);
    in[3].fill_(decay);
    in[4].fill_(1);
    in[1].narrow(1, 10, 30).copy_(in[1].narrow(1, 10, 1).expand({1, 30, 1, 4}));
    in[0].narrow(1, 50, 3).zero_();
    in[1].narrow(1, 60, 3).zero_();
    for (const StateUpdate update : kUpdates) {
      expect_equal_to_recurrence("decay " + std::to_string(decay), in, {}, true, update);
    }
  }
}

TEST_P(GatedDeltaRuleCuda, LeavesFrozenInputsWithoutGradient) {
  const Tensors inputs = random_inputs({1, 70, 1, 2, 4, 4}, at::kFloat);
  for (const StateUpdate update : kUpdates) {
    for (size_t frozen = 0; frozen < 6; ++frozen) {
      std::vector<bool> is_frozen(6, false);
      is_frozen[frozen] = true;
      expect_equal(
          "frozen " + std::to_string(frozen) + name_of(update),
          operator_of(gated_delta_rule, {}, true, update),
          operator_of(reference::gated_delta_rule, {}, true, update),
          inputs,
          is_frozen,
          4);
    }
  }
}

// Rows and key heads are independent: passes over some of them have the same bits.
TEST_P(GatedDeltaRuleCuda, HasTheSameBitsInSeveralPasses) {
  Tensors in = random_inputs({3, 70, 2, 4, 8, 16}, at::kFloat);
  for (at::Tensor& tensor : in) {
    tensor = there(tensor);
  }
  const at::Tensor lengths = there(at::tensor({0, 40, 70, 140, 150, 210}, at::kInt));
  for (const StateUpdate update : kUpdates) {
    const GatedDeltaInputs inputs = inputs_of(in, lengths, true, update);
    const GatedDelta whole = cuda::gated_delta_rule(inputs, true);
    const Tensors incoming{at::randn_like(whole.output), at::randn_like(whole.final_state)};
    const auto expected = cuda::gated_delta_rule_backward(inputs, incoming[0], incoming[1]);
    for (const double bytes : {0.0, 2.1e6}) {  // one key head, and two rows at a time
      const GatedDelta parts = cuda::gated_delta_rule(inputs, true, bytes);
      EXPECT_TRUE(at::equal(parts.output, whole.output)) << name_of(update);
      EXPECT_TRUE(at::equal(parts.final_state, whole.final_state)) << name_of(update);
      const auto found = cuda::gated_delta_rule_backward(inputs, incoming[0], incoming[1], bytes);
      for (size_t k = 0; k < found.size(); ++k) {
        EXPECT_TRUE(at::equal(found[k], expected[k])) << "gradient " << k << name_of(update);
      }
    }
  }
}

TEST_P(GatedDeltaRuleCuda, GivesItsFinalStateAndItsGradientsAlone) {
  for (const StateUpdate update : kUpdates) {
    for (const bool with_state : {false, true}) {
      Tensors in = random_inputs({2, 100, 2, 4, 9, 5}, at::kFloat);
      in.resize(with_state ? 6 : 5);
      for (at::Tensor& tensor : in) {
        tensor = there(tensor).requires_grad_();
      }
      const at::Tensor lengths = there(at::tensor({0, 30, 100, 170, 200}, at::kInt));
      const GatedDeltaInputs inputs = inputs_of(in, lengths, with_state, update);
      const GatedDelta whole = gated_delta_rule(inputs);
      expect_kernels(true, [&] { EXPECT_TRUE(at::equal(gated_delta_final_state(inputs), whole.final_state)); });
      const Tensors incoming{at::randn_like(whole.output), at::randn_like(whole.final_state)};
      const auto expected = torch::autograd::grad({whole.output, whole.final_state}, in, incoming);
      const auto found = gated_delta_rule_backward(inputs, incoming[0], incoming[1]);
      ASSERT_EQ(found.size(), 6);
      EXPECT_EQ(found[5].defined(), with_state);
      for (size_t k = 0; k < in.size(); ++k) {
        EXPECT_TRUE(at::equal(found[k], expected[k])) << "gradient " << k << name_of(update);
      }
    }
  }
}

// Queries, keys and values are recomputed from the convolution's input in backward; those of Mamba-2 have biases.
TEST_P(GatedDeltaRuleCuda, FollowsTheConvolution) {
  const auto with = [](auto conv, auto rule, StateUpdate update) -> Operator {
    return [=](const Tensors& in) -> Tensors {
      const at::Tensor keys = update == StateUpdate::add ? in[8] : at::Tensor();
      const at::Tensor values = update == StateUpdate::add ? in[9] : at::Tensor();
      Tensors all{conv(in[0], in[6], keys), conv(in[1], in[6], keys), conv(in[2], in[7], values), in[3], in[4], in[5]};
      return {rule(inputs_of(all, {}, false, update)).output};
    };
  };
  using Tensor = at::Tensor;
  Tensors inputs = random_inputs({2, 70, 1, 2, 8, 4}, at::kFloat);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{8, 1, 4}, {8, 1, 4}, {8}, {8}}) {
    inputs.push_back(random_tensor(sizes, at::kFloat));
  }
  for (const StateUpdate update : kUpdates) {
    const bool biased = update == StateUpdate::add;
    expect_equal(
        "convolved" + name_of(update),
        with(
            [](const Tensor& x, const Tensor& w, const Tensor& b) { return causal_conv(x, w, {}, {}, b); },
            gated_delta_rule,
            update),
        with(
            [](const Tensor& x, const Tensor& w, const Tensor& b) { return reference::causal_conv(x, w, {}, {}, b); },
            reference::gated_delta_rule,
            update),
        inputs,
        {false, false, false, false, false, true, false, false, !biased, !biased},
        8);  // two operators
  }
}

// Large keys, few tokens, float64.
TEST_P(GatedDeltaRuleCuda, UsesTheDefinitionOfUnsupportedSizesAndTypes) {
  const auto by_definition = [&](const char* what, const Tensors& inputs, StateUpdate update) {
    expect_equal_to_recurrence(what, inputs, {}, /*with_state=*/true, update, /*by_kernels=*/false);
  };
  by_definition("large keys", random_inputs({1, 6, 1, 1, 130, 2}, at::kFloat), StateUpdate::correct);
  for (const StateUpdate update : kUpdates) {
    by_definition("a step", random_inputs({2, 1, 1, 2, 4, 4}, at::kFloat), update);
    by_definition("float64", random_inputs({1, 9, 1, 1, 4, 4}, at::kDouble), update);
  }
}

INSTANTIATE_TEST_SUITE_P(, GatedDeltaRuleCuda, testing::Bool(), place_name);

}  // namespace
}  // namespace lehr::ops::test

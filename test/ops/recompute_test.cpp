// Recomputed activations: the same bits as saved ones, and no memory between forward and backward.
#include "lehr/ops/recompute.h"

#include <gtest/gtest.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/causal_conv/causal_conv.h"
#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/linear_float8/linear_float8.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/rotary.h"
#include "lehr/ops/silu_mul/silu_mul.h"
#include "lehr/ops/token_permutation/token_permutation.h"
#include "lehr/ops/weight_gradients.h"
#include "test/ops/gradients.h"

namespace lehr::ops {
namespace {
using test::take_gradients;
using test::Tensors;

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).set_requires_grad(true);
}

// The form in which a consumer gets a recomputable tensor: directly, or as a copy, which cannot be recomputed.
using Pass = std::function<at::Tensor(const at::Tensor&)>;
const Pass kAsItIs = [](const at::Tensor& made) { return made; };
const Pass kCopied = [](const at::Tensor& made) { return made.clone(); };

struct Case {
  const char* name;
  Tensors leaves;
  std::function<at::Tensor(const Tensors& leaves, const Pass& pass)> forward;
};

std::vector<Case> cases() {
  const at::Tensor angles = at::rand({6, 4});
  const TokenPermutation permutation = sort_by_expert(at::tensor({0, 2, 1, 2, 0, 1, 1, 0, 2, 1}).view({5, 2}), 3);
  return {
      {"rms_norm, of which three read",
       {leaf({5, 8}), leaf({8}), leaf({4, 8}), leaf({4, 8}), leaf({4, 8})},
       [](const Tensors& l, const Pass& pass) {
         const at::Tensor normed = pass(rms_norm(l[0], l[1], 1e-6));
         return ops::linear(normed, l[2]) + ops::linear(normed, l[3]) * ops::linear(normed, l[4]);
       }},
      {"silu_mul",
       {leaf({5, 8}), leaf({5, 8}), leaf({4, 8})},
       [](const Tensors& l, const Pass& pass) { return ops::linear(pass(silu_mul(l[0], l[1])), l[2]); }},
      {"clamped_swiglu",
       {leaf({5, 16}), leaf({4, 8})},
       [](const Tensors& l, const Pass& pass) {
         return ops::linear(pass(clamped_swiglu(l[0], {.limit = 0.5, .alpha = 1.1})), l[1]);
       }},
      {"qk_norm_rotary",
       {leaf({1, 6, 2, 4}), leaf({1, 6, 1, 4}), leaf({4}), leaf({4})},
       [angles](const Tensors& l, const Pass& pass) {
         const auto [q, k] = qk_norm_rotary(
             l[0].repeat({1, 4, 1, 1}),
             l[1].repeat({1, 4, 1, 1}),
             l[2],
             l[3],
             1e-6,
             angles.cos().repeat({4, 1}),
             angles.sin().repeat({4, 1}));
         return attention(pass(q), pass(k), l[1].repeat({1, 4, 1, 1}), {});
       }},
      {"permute_tokens behind rms_norm and a change of shape",
       {leaf({1, 5, 8}), leaf({8}), leaf({3, 4, 8})},
       [permutation](const Tensors& l, const Pass& pass) {
         const at::Tensor tokens = pass(rms_norm(l[0], l[1], 1e-6)).reshape({5, 8});
         return grouped_linear(pass(permute_tokens(tokens, permutation)), l[2], permutation.ends);
       }},
      {"add_rms_norm, of which both are read",
       {leaf({5, 8}), leaf({5, 8}), leaf({8}), leaf({4, 8}), leaf({4, 8})},
       [](const Tensors& l, const Pass& pass) {
         const auto [sum, normed] = add_rms_norm(l[0], l[1], l[2], 1e-6);
         const at::Tensor read = pass(normed);
         return ops::linear(read, l[3]) * ops::linear(read, l[4]) + sum.narrow(1, 0, 4);
       }},
      {"causal_conv of queries, keys and values",
       {leaf({2, 9, 1, 4}), leaf({4, 1, 4}), leaf({2, 9, 2, 4}), leaf({8, 1, 4}), leaf({2, 9, 2})},
       [](const Tensors& l, const Pass& pass) {
         const at::Tensor q = pass(causal_conv(l[0], l[1])), k = pass(causal_conv(l[0] + 1, l[1]));
         const at::Tensor v = pass(causal_conv(l[2], l[3]));
         return gated_delta_rule({q, k, v, -l[4].exp(), l[4].sigmoid()}).output;
       }},
      {"causal_conv of x, B and C with biases",
       {leaf({2, 9, 1, 4}),
        leaf({4, 1, 4}),
        leaf({4}),
        leaf({2, 9, 2, 4}),
        leaf({8, 1, 4}),
        leaf({8}),
        leaf({2, 9, 2})},
       [](const Tensors& l, const Pass& pass) {
         const at::Tensor c = pass(causal_conv(l[0], l[1], {}, {}, l[2]));
         const at::Tensor b = pass(causal_conv(l[0] + 1, l[1], {}, {}, l[2]));
         const at::Tensor x = pass(causal_conv(l[3], l[4], {}, {}, l[5]));
         return gated_delta_rule({c, b, x, -l[6].exp(), l[6].exp(), {}, {}, StateUpdate::add}).output;
       }},
      {"add_rms_norm without a branch",
       {leaf({5, 8}), leaf({8}), leaf({4, 8})},
       [](const Tensors& l, const Pass& pass) {
         const auto [sum, normed] = add_rms_norm(l[0], {}, l[1], 1e-6);
         return ops::linear(pass(normed), l[2]) + sum.narrow(1, 0, 4);
       }},
  };
}

// Blocks that save only their input if matmuls are recomputed.
std::vector<Case> products() {
  const at::Tensor angles = at::rand({24, 4});  // enough rows for the fused attention
  const TokenPermutation permutation = sort_by_expert(at::tensor({0, 2, 1, 2, 0, 1, 1, 0, 2, 1}).view({5, 2}), 3);
  const auto heads = [](const at::Tensor& x) { return x.view({1, 24, 2, 4}); };
  return {
      {"a gated feed-forward",
       {leaf({5, 8}), leaf({8}), leaf({6, 8}), leaf({6, 8}), leaf({8, 6})},
       [](const Tensors& l, const Pass& pass) {
         const at::Tensor x = rms_norm(l[0], l[1], 1e-6);
         return ops::linear(silu_mul(pass(ops::linear(x, l[2])), pass(ops::linear(x, l[3]))), l[4]);
       }},
      {"the same in float8",
       {leaf({5, 8}), leaf({8}), leaf({6, 8}), leaf({6, 8}), leaf({8, 6})},
       [](const Tensors& l, const Pass& pass) {
         const at::Tensor x = rms_norm(l[0], l[1], 1e-6);
         return linear_float8(silu_mul(pass(linear_float8(x, l[2])), pass(linear_float8(x, l[3]))), l[4]);
       }},
      {"attention behind QK-norm",
       {leaf({1, 24, 8}), leaf({8, 8}), leaf({8, 8}), leaf({8, 8}), leaf({4}), leaf({4})},
       [angles, heads](const Tensors& l, const Pass& pass) {
         const auto [q, k] = qk_norm_rotary(
             heads(pass(ops::linear(l[0], l[1]))),
             heads(pass(ops::linear(l[0], l[2]))),
             l[4],
             l[5],
             1e-6,
             angles.cos(),
             angles.sin());
         return attention(q, k, heads(pass(ops::linear(l[0], l[3]))), {});
       }},
      {"attention behind rotations alone",
       {leaf({1, 24, 8}), leaf({8, 8}), leaf({8, 8}), leaf({8, 8})},
       [angles, heads](const Tensors& l, const Pass& pass) {
         const at::Tensor first = ops::linear(l[0], l[1]), second = ops::linear(l[0], l[2]);
         const auto [q, k] = apply_rotary(heads(pass(first)), heads(pass(second)), angles.cos(), angles.sin());
         return attention(pass(q), pass(k), heads(pass(ops::linear(l[0], l[3]))), {});
       }},
      {"a norm behind a product of frozen weights",
       {leaf({5, 8}), leaf({8}), leaf({8})},
       [frozen = at::randn({8, 8})](const Tensors& l, const Pass& pass) {
         const at::Tensor x = rms_norm(l[0], l[1], 1e-6);
         return rms_norm(pass(ops::linear(x, frozen)), l[2], 1e-6);
       }},
      {"experts",
       {leaf({5, 8}), leaf({3, 6, 8}), leaf({3, 6, 8}), leaf({3, 8, 6}), leaf({10})},
       [permutation](const Tensors& l, const Pass& pass) {
         const at::Tensor x = permute_tokens(l[0], permutation);
         const at::Tensor gate = pass(grouped_linear(x, l[1], permutation.ends));
         const at::Tensor up = pass(grouped_linear(x, l[2], permutation.ends));
         const at::Tensor results = pass(grouped_linear(silu_mul(gate, up), l[3], permutation.ends));
         return combine_tokens(results, l[4].view({5, 2}), permutation);
       }},
      {"experts in float8",
       {leaf({5, 8}), leaf({3, 6, 8}), leaf({3, 6, 8}), leaf({3, 8, 6}), leaf({3, 8}), leaf({10})},
       [permutation](const Tensors& l, const Pass& pass) {
         const at::Tensor x = permute_tokens(l[0], permutation);
         const at::Tensor gate = pass(grouped_linear_float8(x, l[1], permutation.ends));
         const at::Tensor up = pass(grouped_linear_float8(x, l[2], permutation.ends));
         const at::Tensor results = pass(grouped_linear_float8(silu_mul(gate, up), l[3], permutation.ends, l[4]));
         return combine_tokens(results, l[5].view({5, 2}), permutation);
       }},
      {"experts with biases",
       {leaf({5, 8}), leaf({3, 12, 8}), leaf({3, 12}), leaf({3, 8, 6}), leaf({3, 8}), leaf({10})},
       [permutation](const Tensors& l, const Pass& pass) {
         const at::Tensor x = permute_tokens(l[0], permutation);
         const at::Tensor both = pass(grouped_linear(x, l[1], permutation.ends, l[2]));
         const at::Tensor results = pass(grouped_linear(clamped_swiglu(both, {}), l[3], permutation.ends, l[4]));
         return combine_tokens(results, l[5].view({5, 2}), permutation);
       }}};
}

std::vector<Case> cases_and_products() {
  std::vector<Case> all = cases();
  for (Case& c : products()) {
    all.push_back(std::move(c));
  }
  return all;
}

Tensors gradients_of(const Case& c, const Pass& pass) {
  at::Tensor output = c.forward(c.leaves, pass);
  output.backward(at::ones_like(output));
  return take_gradients(c.leaves);
}

void expect_same_bits(const Tensors& found, const Tensors& expected, const std::string& where) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << where << ", leaf " << i;
  }
}

TEST(Recompute, HasTheGradientsOfSavedInputsBitForBit) {
  for (const Case& c : cases()) {
    expect_same_bits(gradients_of(c, kAsItIs), gradients_of(c, kCopied), c.name);
  }
}

// Whether the memory of the recomputable tensor is still live between forward and backward.
bool stays(const Case& c, const Pass& pass) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
  const at::Tensor output = c.forward(c.leaves, [&](const at::Tensor& tensor) {
    const at::Tensor passed = pass(tensor);
    made.emplace_back(passed.storage().getWeakStorageImpl());
    return passed;
  });
  bool stays = false;
  for (const auto& one : made) {
    stays = stays || !one.expired();
  }
  return stays;
}

TEST(Recompute, SavesNoRecomputableTensor) {
  for (const Case& c : cases()) {
    EXPECT_FALSE(stays(c, kAsItIs)) << c.name;
    EXPECT_TRUE(stays(c, kCopied)) << c.name;
  }
}

TEST(Recompute, SavesATensorWithoutRecomputation) {
  for (const Case& c : cases()) {
    EXPECT_TRUE(stays(c, without_recomputation)) << c.name;
    expect_same_bits(gradients_of(c, without_recomputation), gradients_of(c, kAsItIs), c.name);
  }
  const at::Tensor x = leaf({2, 3});
  EXPECT_TRUE(without_recomputation(x).is_same(x)) << "it is saved anyway";
}

TEST(Recompute, SavesATensorThatWasModifiedInplace) {
  const Case c = cases()[1];
  const Pass doubled_in_place = [](const at::Tensor& made) {
    at::Tensor written = made;
    return written.mul_(2);
  };
  const Pass doubled = [](const at::Tensor& made) { return made * 2; };
  const Pass cleared_behind_autograd = [](const at::Tensor& made) {
    const at::NoGradGuard no_grad;
    at::Tensor(made).zero_();
    return made;
  };
  EXPECT_EQ(gradients_of(c, cleared_behind_autograd)[2].abs().max().item<float>(), 0) << "weight";
  expect_same_bits(gradients_of(c, doubled_in_place), gradients_of(c, doubled), "silu_mul, doubled");
}

TEST(Recompute, SavesASliceOfARecomputableTensor) {
  const at::Tensor gate = leaf({5, 8}), up = leaf({5, 8}), weight = leaf({4, 4});
  const auto run = [&](const Pass& pass) {
    ops::linear(pass(silu_mul(gate, up)).narrow(0, 1, 3).narrow(1, 4, 4), weight).sum().backward();
    return take_gradients({gate, up, weight});
  };
  expect_same_bits(run(kAsItIs), run(kCopied), "a part");
}

TEST(Recompute, SavesAViewThatWasMadeWithoutGradMode) {
  const at::Tensor x = leaf({2, 3, 8}), norm = leaf({8}), weight = leaf({4, 8});
  at::Tensor flat;
  {
    const at::Tensor normed = rms_norm(x, norm, 1e-6);
    const at::NoGradGuard no_grad;
    flat = normed.view({6, 8});
  }
  ops::linear(flat, weight).sum().backward();
  EXPECT_TRUE(at::allclose(weight.grad(), flat.sum(0).expand({4, 8}), 1e-5, 1e-5));
}

TEST(Recompute, WorksTwiceOnARetainedGraph) {
  const RecomputeMatmuls recompute(true);
  for (const Case& c : cases_and_products()) {
    at::Tensor output = c.forward(c.leaves, kAsItIs);
    output.backward(at::ones_like(output), /*retain_graph=*/true);
    const Tensors first = take_gradients(c.leaves);
    output.backward(at::ones_like(output));
    expect_same_bits(take_gradients(c.leaves), first, c.name);
    EXPECT_ANY_THROW(output.backward(at::ones_like(output))) << c.name;
  }
}

TEST(Recompute, WorksWithDeferredWeightGradients) {
  const RecomputeMatmuls recompute(true);
  for (const Case& c : cases_and_products()) {
    const Tensors expected = gradients_of(c, kAsItIs);
    const auto wgrads = std::make_shared<WeightGradients>();
    at::Tensor output;
    {
      const WeightGradients::Scope scope(wgrads);
      output = c.forward(c.leaves, kAsItIs);
    }
    wgrads->backward_input({output}, {at::ones_like(output)});
    output.reset();
    wgrads->backward_weight();
    expect_same_bits(take_gradients(c.leaves), expected, c.name);
  }
}

TEST(Recompute, RecomputesMatmulsIfEnabled) {
  for (const Case& c : products()) {
    const Tensors expected = gradients_of(c, kAsItIs);
    EXPECT_TRUE(stays(c, kAsItIs)) << c.name << ": without being asked for";
    const RecomputeMatmuls recompute(true);
    EXPECT_FALSE(stays(c, kAsItIs)) << c.name;
    EXPECT_TRUE(stays(c, kCopied)) << c.name;
    expect_same_bits(gradients_of(c, kAsItIs), expected, c.name);
  }
}

TEST(Recompute, CountsTheFlopsOfRecomputedMatmulsSeparately) {
  const Case c = products().front();
  const auto counted = [&c] {
    const OperationMeter meter;
    gradients_of(c, kAsItIs);
    return meter.counts();
  };
  const OperationCounts once = counted();
  const RecomputeMatmuls recompute(true);
  const OperationCounts twice = counted();
  EXPECT_EQ(once.recomputed_flops, 0);
  EXPECT_EQ(twice.recomputed_flops, 2 * 2 * 5 * 8 * 6) << "gate and up";
  EXPECT_EQ(twice.matmul_flops, once.matmul_flops + twice.recomputed_flops);
}

// Doubles its input; counts how often the result is recomputed.
struct Twice : AutogradFunction<Twice> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*ctx*/, const torch::autograd::variable_list& grads) {
    return {grads[0] * 2};
  }
};

TEST(Recompute, SharesOneRecomputedTensorAmongAllReaders) {
  int made = 0;
  const at::Tensor x = leaf({3, 4}), weight = leaf({2, 4});
  const at::Tensor twice = recomputable(Twice::apply(x), [&made](torch::autograd::AutogradContext* ctx) {
    ++made;
    return ctx->get_saved_variables()[0] * 2;
  });
  at::Tensor sum = ops::linear(twice, weight).sum() + ops::linear(twice, weight * 3).sum();
  sum.backward();
  EXPECT_EQ(made, 1);
  const at::Tensor expected = (x * 2).sum(0).expand({2, 4}) * 4;
  EXPECT_TRUE(at::allclose(weight.grad(), expected, 1e-5, 1e-5));
}

}  // namespace
}  // namespace lehr::ops

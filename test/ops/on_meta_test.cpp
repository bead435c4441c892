// An operator saves and allocates the same bytes on meta as on the CPU.
#include "lehr/meter/on_meta.h"

#include <gtest/gtest.h>

#include <functional>

#include "lehr/meter/memory_meter.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/causal_conv/causal_conv.h"
#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"
#include "lehr/ops/embedding/embedding.h"
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/linear_float8/linear_float8.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/rotary.h"
#include "lehr/ops/silu_mul/silu_mul.h"
#include "lehr/ops/token_permutation/token_permutation.h"

namespace lehr::ops {
namespace {

/// Creates inputs on one device.
class Maker {
 public:
  Maker(at::Device device, at::ScalarType type) : device_(device), type_(type) {}
  at::Tensor input(at::IntArrayRef shape) const {
    return at::ones(shape, at::TensorOptions().device(device_).dtype(type_)).requires_grad_();
  }
  at::Tensor ids(at::IntArrayRef shape) const {
    return at::zeros(shape, at::TensorOptions().device(device_).dtype(at::kLong));
  }
  /// Ends of groups of `rows` rows each.
  at::Tensor ends(int64_t groups, int64_t rows) const {
    return (at::arange(1, groups + 1, at::TensorOptions().device(device_).dtype(at::kInt)) * rows).to(at::kInt);
  }

 private:
  at::Device device_;
  at::ScalarType type_;
};

using Call = std::function<at::Tensor()>;
using MakeCall = std::function<Call(const Maker&)>;

struct Cost {
  int64_t kept = 0;  // bytes after forward, including the result
  int64_t forward_peak = 0, backward_peak = 0;
  double flops = 0;
};

Cost cost_of(const MakeCall& make, at::Device device, at::ScalarType type) {
  const Call call = make(Maker(device, type));
  MemoryMeter memory(device.type());
  const OperationMeter operations;
  Cost cost;
  at::Tensor result = call();
  cost.kept = memory.now();
  cost.forward_peak = memory.peak();
  const at::Tensor gradient = at::ones_like(result);
  memory.reset_peak();
  result.backward(gradient);
  cost.backward_peak = memory.peak();
  cost.flops = operations.counts().flops();
  return cost;
}

// `beside`: bytes that a real run allocates to look at data, for example to check labels.
void expect_cost_of_cpu(const MakeCall& make, at::ScalarType type = at::kFloat, int64_t beside = 0) {
  at::globalContext().setUserEnabledMkldnn(false);  // on some CPUs its matmuls copy transposed operands
  const Cost wanted = cost_of(make, at::kCPU, type);
  const OnMeta on_meta;
  const Cost found = cost_of(make, at::kMeta, type);
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_EQ(found.kept, wanted.kept);
  EXPECT_LE(found.forward_peak, wanted.forward_peak);
  EXPECT_GE(found.forward_peak, wanted.forward_peak - beside);
  EXPECT_LE(found.backward_peak, wanted.backward_peak);
  EXPECT_GE(found.backward_peak, wanted.backward_peak - beside);
  EXPECT_EQ(found.flops, wanted.flops);
}

TEST(OnMeta, Linear) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [x = make.input({2, 8, 16}), w = make.input({24, 16}), b = make.input({24})] { return linear(x, w, b); };
  });
}

TEST(OnMeta, LinearFloat8) {
  for (const Float8Recipe recipe : {Float8Recipe::rowwise, Float8Recipe::rowwise_with_gw_hp}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      expect_cost_of_cpu(
          [recipe](const Maker& make) -> Call {
            return [recipe, x = make.input({2, 8, 16}), w = make.input({24, 16}), b = make.input({24})] {
              return linear_float8(x, w, b, recipe);
            };
          },
          type);
    }
  }
}

TEST(OnMeta, GroupedLinearOfEvenGroups) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [x = make.input({32, 16}), w = make.input({4, 24, 16}), ends = make.ends(4, 8)] {
      return grouped_linear(x, w, ends);
    };
  });
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [x = make.input({32, 16}), w = make.input({4, 24, 16}), b = make.input({4, 24}), ends = make.ends(4, 8)] {
      return grouped_linear(x, w, ends, b);
    };
  });
}

TEST(OnMeta, GroupedLinearFloat8OfEvenGroups) {
  for (const Float8Recipe recipe : {Float8Recipe::rowwise, Float8Recipe::rowwise_with_gw_hp}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      expect_cost_of_cpu(
          [recipe](const Maker& make) -> Call {
            return [recipe,
                    x = make.input({32, 16}),
                    w = make.input({4, 24, 16}),
                    b = make.input({4, 24}),
                    ends = make.ends(4, 8)] { return grouped_linear_float8(x, w, ends, b, recipe); };
          },
          type);
    }
  }
}

TEST(OnMeta, RmsNorm) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [x = make.input({2, 8, 16}), w = make.input({16})] { return rms_norm(x, w, 1e-6); };
  });
}

TEST(OnMeta, AddRmsNorm) {
  for (const bool with_branch : {false, true}) {
    expect_cost_of_cpu([with_branch](const Maker& make) -> Call {
      return [x = make.input({2, 8, 16}),
              branch = with_branch ? make.input({2, 8, 16}) : at::Tensor(),
              w = make.input({16})] {
        const auto [sum, normed] = add_rms_norm(x, branch, w, 1e-6);
        return sum * normed;
      };
    });
  }
}

TEST(OnMeta, QkNormRotary) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [q = make.input({2, 8, 4, 16}),
            k = make.input({2, 8, 2, 16}),
            w = make.input({16}),
            angles = make.input({1, 8, 16}).detach()] {
      const auto [rotated_q, rotated_k] = qk_norm_rotary(q, k, w, w, 1e-6, angles, angles);
      return at::cat({rotated_q, rotated_k}, 2);
    };
  });
}

TEST(OnMeta, Embedding) {
  const MakeCall call = [](const Maker& make) -> Call {
    return [table = make.input({100, 16}), ids = make.ids({2, 8})] { return ops::embedding(table, ids); };
  };
  expect_cost_of_cpu(call);
  for (const at::Device device : {at::kCPU, at::kMeta}) {
    const OnMeta on_meta;
    const at::Tensor found = call(Maker(device, at::kFloat))();
    const OperationMeter backward;
    found.backward(at::ones_like(found));
    EXPECT_GE(backward.counts().pointwise_bytes, 4.0 * (100 * 16 + 16 * 16))
        << device << ": the whole table is written";
  }
}

TEST(OnMeta, SiluMul) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [gate = make.input({2, 8, 16}), up = make.input({2, 8, 16})] { return silu_mul(gate, up); };
  });
}

TEST(OnMeta, ClampedSwiGLU) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [both = make.input({2, 8, 32})] { return clamped_swiglu(both, {}); };
  });
}

TEST(OnMeta, CausalConv) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    expect_cost_of_cpu(
        [](const Maker& make) -> Call {
          return [x = make.input({2, 8, 4, 4}), w = make.input({16, 1, 4})] { return causal_conv(x, w); };
        },
        type);
    expect_cost_of_cpu(
        [](const Maker& make) -> Call {
          return [x = make.input({2, 8, 16}), w = make.input({16, 1, 4}), bias = make.input({16})] {
            return causal_conv(x, w, {}, {}, bias);
          };
        },
        type);
  }
}

TEST(OnMeta, GatedDeltaRule) {
  for (const StateUpdate update : {StateUpdate::correct, StateUpdate::add}) {
    expect_cost_of_cpu([update](const Maker& make) -> Call {
      return [update,
              q = make.input({2, 80, 2, 8}),
              k = make.input({2, 80, 2, 8}),
              v = make.input({2, 80, 4, 6}),
              decay = make.input({2, 80, 4}),
              beta = make.input({2, 80, 4})] {
        return gated_delta_rule({q, k, v, decay, beta, {}, {}, update}).output;
      };
    });
  }
}

MakeCall attention_call(const AttentionOptions& options, bool documents) {
  return [=](const Maker& make) -> Call {
    return [q = make.input({2, 32, 4, 16}),
            k = make.input({2, 32, 2, 16}),
            v = make.input({2, 32, 2, 8}),
            options,
            ids = documents ? make.ids({2, 32}) : at::Tensor()] {
      AttentionMask mask;
      mask.document_ids = ids;
      return attention(q, k, v, mask, options);
    };
  };
}

TEST(OnMeta, AttentionInTiles) {
  expect_cost_of_cpu(attention_call({}, false));
  expect_cost_of_cpu(attention_call({.window = 8}, true));
  expect_cost_of_cpu(attention_call({}, true), at::kBFloat16);
}

TEST(OnMeta, AttentionInTilesCountsVisibleKeys) {
  const OnMeta on_meta;
  const double full = 2 * 4 * (16 + 8) * 2.0 * (32 * 33 / 2.0);  // rows, heads, sizes, matmuls; pairs
  EXPECT_EQ(cost_of(attention_call({}, false), at::kMeta, at::kFloat).flops, 3 * full);
  const double pairs = 8 * 9 / 2.0 + 24 * 8;
  EXPECT_EQ(
      cost_of(attention_call({.window = 8}, false), at::kMeta, at::kFloat).flops, 3 * (2 * 4 * (16 + 8) * 2.0 * pairs));
}

TEST(OnMeta, LinearCrossEntropyWhereAllLabelsCount) {
  constexpr int64_t kChecks = 64 * 8;  // for the checks of labels
  expect_cost_of_cpu(
      [](const Maker& make) -> Call {
        return [h = make.input({64, 16}), w = make.input({32, 16}), labels = make.ids({64})] {
          return linear_cross_entropy(h, w, labels, -100).sum();
        };
      },
      at::kFloat,
      kChecks);
}

TEST(OnMeta, TokenPermutation) {
  expect_cost_of_cpu([](const Maker& make) -> Call {
    return [x = make.input({32, 16}), weights = make.input({32, 2}), chosen = make.ids({32, 2})] {
      const TokenPermutation permutation = sort_by_expert(chosen, 4);
      return combine_tokens(permute_tokens(x, permutation), weights, permutation);
    };
  });
}

TEST(OnMeta, ATensorHasAStandInOnlyWithinAScope) {
  const at::Tensor tensor = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_FALSE(runs_on_meta(tensor));
  const OnMeta on_meta;
  EXPECT_TRUE(runs_on_meta(tensor));
  EXPECT_FALSE(runs_on_meta(at::empty({2})));
}

}  // namespace
}  // namespace lehr::ops

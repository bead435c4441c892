// The CUDA kernels compared with the operators' definitions: as loops on the host everywhere, and on a GPU if there is
// one.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/global_norm/global_norm.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/rms_norm/kernels.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/rotary.h"
#include "lehr/ops/silu_mul/kernels.h"
#include "lehr/ops/silu_mul/silu_mul.h"
#include "lehr/ops/token_permutation/token_permutation.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

using testing::HasSubstr;

class CudaKernels : public OperatorKernelsTest {};

constexpr double kEps = 0.3;  // as in rms_norm_test.cpp

TEST_P(CudaKernels, RmsNormEqualsItsDefinition) {
  for (const auto type : kKernelTypes) {
    for (const auto kind : {NormWeight::plain, NormWeight::zero_centered}) {
      const Operator fast = [&](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kEps, kind)}; };
      const Operator definition = [&](const Tensors& in) -> Tensors {
        return {reference::rms_norm(in[0], in[1], kEps, kind)};
      };
      // One or two threads, a part of a warp, a warp, several warps, a whole block.
      for (const auto& [rows, size] :
           std::vector<std::pair<int64_t, int64_t>>{{3, 8}, {40, 24}, {7, 1024}, {5, 1544}, {3, 4096}, {2, 8192}}) {
        const Tensors inputs = {random_tensor({rows, size}, type), random_tensor({size}, type)};
        const std::string what = std::to_string(rows) + "x" + std::to_string(size);
        expect_equal(what, fast, definition, inputs, {}, 4);  // as in rms_norm_test.cpp
      }
      const Tensors inputs = {random_tensor({9, 64}, type), random_tensor({64}, type)};
      expect_equal("frozen input", fast, definition, inputs, {true, false}, 4);
      expect_equal("frozen weight", fast, definition, inputs, {false, true}, 4);
      expect_equal("no rows", fast, definition, {random_tensor({0, 64}, type), random_tensor({64}, type)});
    }
  }
}

TEST_P(CudaKernels, AddRmsNormEqualsItsDefinition) {
  for (const auto type : kKernelTypes) {
    for (const bool adds : {false, true}) {
      const auto branch = [adds](const Tensors& in) { return adds ? in[2] : at::Tensor(); };
      const Operator fast = [&](const Tensors& in) -> Tensors {
        const auto [sum, normed] = add_rms_norm(in[0], branch(in), in[1], kEps);
        return {sum, normed};
      };
      const Operator definition = [&](const Tensors& in) -> Tensors {
        const auto [sum, normed] = reference::add_rms_norm(in[0], branch(in), in[1], kEps);
        return {sum, normed};
      };
      for (const int64_t size : {8, 24, 1024, 1544, 8192}) {
        Tensors inputs = {random_tensor({5, size}, type), random_tensor({size}, type), random_tensor({5, size}, type)};
        inputs.resize(adds ? 3 : 2);
        expect_equal(std::to_string(size), fast, definition, inputs, {}, 4);  // as in add_rms_norm_test.cpp
        expect_equal("frozen hidden states", fast, definition, inputs, {true, false, false}, 4);
      }
    }
  }
}

TEST_P(CudaKernels, RmsNormWithManyRowsPerGroup) {
  const int64_t groups = cuda::weight_gradient_parts(1 << 20, cuda::row_threads<float>(128));
  const Operator fast = [&](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kEps)}; };
  const Operator definition = [&](const Tensors& in) -> Tensors { return {reference::rms_norm(in[0], in[1], kEps)}; };
  const Tensors inputs = {random_tensor({groups + 90, 128}, at::kFloat), random_tensor({128}, at::kFloat)};
  expect_equal("many rows", fast, definition, inputs, {}, 4);  // as above
}

TEST_P(CudaKernels, RmsNormOfUnsupportedSizesUsesTheDefinition) {
  const Operator op = [](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kEps)}; };
  const Operator definition = [](const Tensors& in) -> Tensors { return {reference::rms_norm(in[0], in[1], kEps)}; };
  for (const int64_t size : {int64_t{7}, cuda::kMostInRow + 8}) {
    const Tensors inputs = {random_tensor({3, size}, at::kFloat), random_tensor({size}, at::kFloat)};
    expect_equal_to_definition(std::to_string(size), here(op, false), definition, inputs, {}, 4);
  }
}

TEST_P(CudaKernels, AcceptUnalignedTensors) {
  const auto shifted = [&](at::IntArrayRef sizes) {
    const int64_t count = c10::multiply_integers(sizes);
    return random_tensor({count + 1}, at::kFloat).to(device()).narrow(0, 1, count).view(sizes);
  };
  const at::Tensor x = shifted({5, 64}), branch = shifted({5, 64}), weight = shifted({64});
  const Operator norms = here([](const Tensors& in) -> Tensors {
    return {rms_norm(in[0], in[2], kEps), std::get<1>(add_rms_norm(in[0], in[1], in[2], kEps))};
  });
  const Tensors found = norms({x, branch, weight});
  EXPECT_LE(worst_error(found[0], reference::rms_norm(x, weight, kEps).cpu()), tolerance(at::kFloat));
  EXPECT_LE(worst_error(found[1], reference::rms_norm(x + branch, weight, kEps).cpu()), tolerance(at::kFloat));
  const at::Tensor gate = shifted({777});
  const Operator gated = here([](const Tensors& in) -> Tensors { return {silu_mul(in[0], in[0])}; });
  EXPECT_LE(worst_error(gated({gate})[0], reference::silu_mul(gate, gate).cpu()), tolerance(at::kFloat));
}

TEST_P(CudaKernels, RotationsEqualTheirDefinitions) {
  for (const auto type : kKernelTypes) {
    for (const auto style : {RotaryStyle::half, RotaryStyle::interleaved}) {
      for (const auto& [size, rotated, own_angles] : std::vector<std::tuple<int64_t, int64_t, bool>>{
               {16, 16, false}, {64, 32, true}, {128, 128, false}, {80, 48, false}, {512, 512, true}}) {
        const at::Tensor angles = random_tensor({own_angles ? 2 : 1, 5, rotated}, at::kDouble, 3);
        const Tensors inputs = {random_tensor({2, 5, 3, size}, type), random_tensor({2, 5, 1, size}, type)};
        const auto with = [&](const Tensors& in) {
          return std::pair(angles.cos().to(in[0].device()), angles.sin().to(in[0].device()));
        };
        const Operator fast = [&](const Tensors& in) -> Tensors {
          const auto [cos, sin] = with(in);
          const auto [q, k] = apply_rotary(in[0], in[1], cos, sin, style);
          return {q, k};
        };
        const Operator definition = [&](const Tensors& in) -> Tensors {
          const auto [cos, sin] = with(in);
          const auto [q, k] = reference::apply_rotary(in[0], in[1], cos, sin, style);
          return {q, k};
        };
        const std::string what = std::to_string(size) + " of which " + std::to_string(rotated) +
                                 (style == RotaryStyle::half ? " in halves" : " interleaved");
        expect_equal(what, fast, definition, inputs);

        const Tensors with_weights = {inputs[0], inputs[1], random_tensor({size}, type), random_tensor({size}, type)};
        for (const auto kind : {NormWeight::plain, NormWeight::zero_centered}) {
          const Operator normed = [&](const Tensors& in) -> Tensors {
            const auto [cos, sin] = with(in);
            const auto [q, k] = qk_norm_rotary(in[0], in[1], in[2], in[3], kEps, cos, sin, style, kind);
            return {q, k};
          };
          const Operator composed = [&](const Tensors& in) -> Tensors {
            const auto [cos, sin] = with(in);
            const auto [q, k] = reference::apply_rotary(
                reference::rms_norm(in[0], in[2], kEps, kind),
                reference::rms_norm(in[1], in[3], kEps, kind),
                cos,
                sin,
                style);
            return {q, k};
          };
          expect_equal("normed " + what, normed, composed, with_weights, {}, 4);  // as RmsNorm
        }
      }
    }
  }
}

TEST_P(CudaKernels, RotationsOfUnsupportedHeadsUseTheDefinition) {
  for (const int64_t size : {18, 1024}) {  // heads of 1024 are rotated by a kernel, after the norm
    const at::Tensor angles = random_tensor({5, 12}, at::kFloat);
    const Operator op = [&](const Tensors& in) -> Tensors {
      const at::Tensor cos = angles.cos().to(in[0].device());
      const at::Tensor sin = angles.sin().to(in[0].device());
      const auto [q, k] = qk_norm_rotary(in[0], in[1], in[2], in[2], kEps, cos, sin);
      return {q, k};
    };
    const Tensors inputs = {
        random_tensor({2, 5, 3, size}, at::kFloat),
        random_tensor({2, 5, 1, size}, at::kFloat),
        random_tensor({size}, at::kFloat)};
    const Operator definition = [&](const Tensors& in) -> Tensors {
      const auto [q, k] = reference::apply_rotary(
          reference::rms_norm(in[0], in[2], kEps),
          reference::rms_norm(in[1], in[2], kEps),
          angles.cos(),
          angles.sin(),
          RotaryStyle::half);
      return {q, k};
    };
    expect_equal_to_definition(std::to_string(size), here(op, size == 1024), definition, inputs, {}, 4);
  }
}

TEST_P(CudaKernels, SiluMulEqualsItsDefinition) {
  const Operator fast = [](const Tensors& in) -> Tensors { return {silu_mul(in[0], in[1])}; };
  const Operator definition = [](const Tensors& in) -> Tensors { return {reference::silu_mul(in[0], in[1])}; };
  for (const auto type : kKernelTypes) {
    for (const int64_t size : {0, 1, 7, 4099}) {
      expect_equal(
          std::to_string(size), fast, definition, {random_tensor({size}, type, 4), random_tensor({size}, type)});
    }
    const Tensors inputs = {random_tensor({9, 33}, type), random_tensor({9, 33}, type)};
    expect_equal("frozen gate", fast, definition, inputs, {true, false});
    expect_equal("frozen up", fast, definition, inputs, {false, true});
    for (const double g : {-1e30, -800.0, -88.5, 0.0, 20.0, 800.0, 1e30}) {
      const at::Tensor one = at::full({9}, g, at::kDouble).to(type).to(device());
      const double wide = one[0].item<double>();
      const double expected = wide / (1 + std::exp(-wide));
      const auto value = here(fast)({one, at::ones_like(one)})[0][0].item<double>();
      EXPECT_NEAR(value, expected, std::max(1.0, std::abs(expected)) * tolerance(type)) << type << " at " << g;
    }
  }
}

TEST_P(CudaKernels, ClampedSwiGLUEqualsItsDefinition) {
  const SwiGLUClamp cuts{.limit = 2.5, .alpha = 1.3};
  const auto fast = [](SwiGLUClamp clamp) -> Operator {
    return [=](const Tensors& in) -> Tensors { return {clamped_swiglu(in[0], clamp)}; };
  };
  const auto definition = [](SwiGLUClamp clamp) -> Operator {
    return [=](const Tensors& in) -> Tensors { return {reference::clamped_swiglu(in[0], clamp)}; };
  };
  for (const auto type : kKernelTypes) {
    for (const int64_t size : {0, 1, 7, 4099}) {
      const Tensors input = {random_tensor({2 * size}, type, 3)};
      expect_equal(std::to_string(size), fast({}), definition({}), input);
      expect_equal("cut " + std::to_string(size), fast(cuts), definition(cuts), input);
    }
    expect_equal("part", fast({}), definition({}), {random_tensor({5, 66}, type).narrow(1, 3, 34)});
    const at::Tensor unaligned = there(random_tensor({67}, type)).narrow(0, 1, 66);
    const at::Tensor found = here(fast({}))({unaligned})[0];
    EXPECT_LE(worst_error(found, reference::clamped_swiglu(unaligned, {}).cpu()), tolerance(type));
  }
}

// At the limits, beyond them, and far beyond.
TEST_P(CudaKernels, ClampedSwiGLUClampsTheGateAboveAndTheOtherHalfOnBothSides) {
  const at::Tensor gates = at::tensor({-1e30, -90.0, -8.0, 0.5, 7.0, 7.5, 1e30}, at::kDouble);
  const at::Tensor ups = at::tensor({-1e30, -7.5, -7.0, 0.25, 7.0, 8.0}, at::kDouble);
  const at::Tensor pairs = at::stack(at::meshgrid({gates, ups}, "ij"), -1);  // (7, 6, 2)
  for (const auto type : kKernelTypes) {
    for (const int64_t gate : {0, 1, 2, 3, 4, 5, 6}) {  // each by itself, because errors are relative to the largest
      expect_equal(
          "gate " + std::to_string(gate),
          [](const Tensors& in) -> Tensors { return {clamped_swiglu(in[0], {})}; },
          [](const Tensors& in) -> Tensors { return {reference::clamped_swiglu(in[0], {})}; },
          {pairs[gate].to(type)});
    }
    const at::Tensor nan = there(at::full({4}, std::nan(""), type));
    EXPECT_TRUE(clamped_swiglu(nan, {}).isnan().all().item<bool>()) << type;
  }
}

TEST_P(CudaKernels, LossEqualsItsDefinition) {
  for (const auto type : kKernelTypes) {
    for (const int64_t vocabulary : {3, 1000, 20003}) {
      at::Tensor labels = at::randint(0, vocabulary, {11}, at::kLong);
      labels[4] = -100;
      const at::Tensor factors = at::rand({11}, at::kDouble);
      const auto scaled = [&](const at::Tensor& losses) {
        return losses.to(at::kDouble) * factors.to(losses.device());
      };
      const Operator fast = [&](const Tensors& in) -> Tensors {
        return {scaled(linear_cross_entropy(in[0], in[1], labels.to(in[0].device())))};
      };
      const Operator definition = [&](const Tensors& in) -> Tensors {
        return {scaled(reference::linear_cross_entropy(in[0], in[1], labels, -100))};
      };
      const Tensors inputs = {random_tensor({11, 32}, type), random_tensor({vocabulary, 32}, type)};
      // Logits are rounded to the dtype before the softmax; the error is their size times the unit in the last place.
      expect_equal(
          "vocabulary " + std::to_string(vocabulary), fast, definition, inputs, {}, type == at::kFloat ? 4 : 8);
    }
  }
}

// The incoming gradients of a sum and of a mean have a stride of 0; the test above has uneven ones.
TEST_P(CudaKernels, LossIsScaledByTheIncomingGradient) {
  for (const auto type : kKernelTypes) {
    at::Tensor labels = at::randint(0, 300, {40}, at::kLong);
    labels.slice(0, 3, 40, 7).fill_(-100);
    const Operator fast = [&](const Tensors& in) -> Tensors {
      return {linear_cross_entropy(in[0], in[1], labels.to(in[0].device())).sum() / 37};
    };
    const Operator definition = [&](const Tensors& in) -> Tensors {
      return {reference::linear_cross_entropy(in[0], in[1], labels, -100).sum() / 37};
    };
    expect_equal("sum", fast, definition, {random_tensor({40, 32}, type), random_tensor({300, 32}, type)}, {}, 8);
  }
}

TEST_P(CudaKernels, LossIsNotRecomputedForAUniformGradient) {
  at::Tensor hidden = there(random_tensor({9, 32}, at::kFloat)).set_requires_grad(true);
  at::Tensor weight = there(random_tensor({50, 32}, at::kFloat)).set_requires_grad(true);
  const at::Tensor labels = there(at::randint(0, 50, {3, 3}, at::kLong));
  const auto uses = [&](const std::function<at::Tensor(const at::Tensor&)>& reduce) {
    const at::Tensor loss = reduce(linear_cross_entropy(hidden, weight, labels.view(-1)).view({3, 3}));
    const int64_t before = cuda::table_uses();
    loss.backward();
    return cuda::table_uses() - before;
  };
  EXPECT_EQ(uses([](const at::Tensor& losses) { return losses.sum() / 9; }), 1);  // only scales the saved gradients
  EXPECT_EQ(uses([](const at::Tensor& losses) { return losses.mean(); }), 1);
  EXPECT_EQ(uses([](const at::Tensor& losses) { return (losses * losses).sum(); }), 1);  // the loss of the rows again
}

TEST_P(CudaKernels, LossIsNaNForALabelOutOfRange) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {  // float64 has no kernels
    for (const int64_t wrong : {5, -1}) {
      at::Tensor hidden = there(random_tensor({4, 16}, type)).set_requires_grad(true);
      const at::Tensor weight = there(random_tensor({5, 16}, type));
      const at::Tensor labels = there(at::tensor({0, -100, int(wrong), 4}, at::kLong));
      const at::Tensor losses = linear_cross_entropy(hidden, weight, labels);
      losses.sum().backward();
      const at::Tensor lost = at::stack({losses.isnan(), hidden.grad().isnan().all(-1)}).cpu();
      EXPECT_TRUE(at::equal(lost, at::tensor({0, 0, 1, 0}).to(at::kBool).expand({2, 4}))) << type << " " << wrong;
      EXPECT_EQ(losses[1].item<double>(), 0);
      EXPECT_EQ(hidden.grad()[1].abs().max().item<double>(), 0);
    }
  }
}

TEST_P(CudaKernels, LossAcceptsLogitsOfMinusInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  at::Tensor logits = random_tensor({3, 5000}, at::kFloat, 5);
  logits.slice(1, 1, 5000, 2).fill_(-inf);
  logits[1].slice(0, 0, 4096).fill_(-inf);
  const at::Tensor labels = at::full({3}, 4998, at::kLong);
  const at::Tensor expected = at::log_softmax(logits.to(at::kDouble), -1);
  const at::Tensor losses = at::empty({3}, at::TensorOptions(device()).dtype(at::kFloat));
  const at::Tensor here = logits.to(device(), at::kFloat, false, /*copy=*/true);
  expect_kernels(true, [&] { cross_entropy_(here, labels.to(device()), losses, true); });
  EXPECT_LE(worst_error(losses.cpu(), -expected.select(1, 4998)), tolerance(at::kFloat));
  at::Tensor gradient = expected.exp();
  gradient.select(1, 4998) -= 1;
  EXPECT_LE(worst_error(here.cpu(), gradient), tolerance(at::kFloat));
}

// A maximum ignores NaN, so a thread whose logits are all NaN must not be left out.
TEST_P(CudaKernels, LossIsNaNIfAThreadSeesOnlyNaN) {
  for (const auto type : kKernelTypes) {
    const int64_t size = 9000;
    at::Tensor logits = random_tensor({2, size}, type);
    const int64_t width = type == at::kFloat ? cuda::kPack<float> : cuda::kPack<Bf16>;
    for (int64_t first = 3 * width; first < size; first += cuda::kMostThreads * width) {
      logits[0].slice(0, first, std::min(first + width, size)).fill_(std::nanf(""));
    }
    const at::Tensor here = there(logits.clone()), losses = there(at::empty({2}));
    expect_kernels(true, [&] { cross_entropy_(here, there(at::zeros({2}, at::kLong)), losses, true); });
    EXPECT_TRUE(std::isnan(losses[0].item<float>())) << type;
    EXPECT_TRUE(here[0].isnan().all().item<bool>()) << type;
    EXPECT_TRUE(std::isfinite(losses[1].item<float>()));
  }
}

TEST_P(CudaKernels, NormAndScalingEqualThoseOfTheCpu) {
  Tensors tensors;
  double square = 0;
  for (int64_t i = 0; i < 150; ++i) {  // more tensors than one launch takes
    const int64_t size = i == 3 ? 200'001 : i == 5 ? 0 : 3 * i + 1;
    tensors.push_back(random_tensor({size}, i % 3 == 0 ? at::kBFloat16 : at::kFloat));
    square += tensors.back().to(at::kDouble).square().sum().item<double>();
    tensors.back() = there(tensors.back());
  }
  tensors.emplace_back();
  tensors.push_back(there(random_tensor({40, 30}, at::kFloat)).t());
  tensors.push_back(there(random_tensor({40, 30}, at::kFloat)).slice(1, 0, 30, 3));
  for (size_t i = tensors.size() - 2; i < tensors.size(); ++i) {
    square += tensors[i].to(at::kDouble).square().sum().item<double>();
  }
  const Operator norm_here = here([&](const Tensors& in) -> Tensors {
    const at::Tensor norm = global_norm(in);
    EXPECT_EQ(norm.scalar_type(), at::kDouble);
    EXPECT_EQ(norm.device().type(), device().type());
    return {norm};
  });
  const auto norm_of = [&](const Tensors& in) { return norm_here(in)[0].item<double>(); };
  const double norm = norm_of(tensors);
  EXPECT_NEAR(norm / std::sqrt(square), 1, 1e-13);  // sums in float64, in another order
  EXPECT_EQ(norm_of(tensors), norm);
  EXPECT_EQ(norm_of({at::full({4}, 1e30f)}), 2 * static_cast<double>(1e30f));
  EXPECT_TRUE(std::isnan(norm_of({at::full({3}, std::nanf(""))})));

  Tensors expected;
  for (const at::Tensor& tensor : tensors) {
    expected.push_back(tensor.defined() ? (tensor.to(at::kFloat) * 0.3f).to(tensor.scalar_type()) : tensor);
  }
  const Operator scale = here([](const Tensors& in) {
    scale_(in, at::full({}, 0.6, in[0].options().dtype(at::kDouble)));
    scale_(in, at::scalar_tensor(0.5, at::kDouble));
    return in;
  });
  scale(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) {
      EXPECT_LE(worst_error(tensors[i], expected[i]), tolerance(tensors[i].scalar_type())) << i;
    }
  }
}

TEST_P(CudaKernels, TokenPermutationEqualsItsDefinition) {
  for (const auto type : kKernelTypes) {
    for (const int64_t size : {5, 64, 1000}) {
      const at::Tensor selected =
          std::get<1>(at::rand({13, 6}).sort(-1)).narrow(-1, 0, 3).contiguous();  // three of six experts
      const Operator fast = [&](const Tensors& in) -> Tensors {
        const TokenPermutation permutation = sort_by_expert(selected.to(in[0].device()), 6);
        const at::Tensor sorted = permute_tokens(in[0], permutation);
        return {sorted, combine_tokens(sorted * in[2], in[1], permutation)};
      };
      const Operator definition = [&](const Tensors& in) -> Tensors {
        const TokenPermutation permutation = sort_by_expert(selected, 6);
        const at::Tensor copies = in[0].unsqueeze(1).expand({-1, 3, -1});
        const at::Tensor sorted = copies.reshape({39, -1}).index_select(0, permutation.order);
        const at::Tensor results = (sorted * in[2]).index_select(0, permutation.inverse).view({13, 3, -1});
        return {sorted, (results * in[1].unsqueeze(-1)).sum(1)};
      };
      const Tensors inputs = {
          random_tensor({13, size}, type), random_tensor({13, 3}, type), random_tensor({size}, type)};
      expect_equal(std::to_string(size), fast, definition, inputs, {}, 4);  // several roundings in sequence
      expect_equal("frozen tokens", fast, definition, inputs, {true, false, true}, 4);
      expect_equal("frozen weights", fast, definition, inputs, {false, true, true}, 4);
    }
  }
}

TEST_P(CudaKernels, RefuseSecondDerivatives) {
  at::Tensor leaf = at::ones({2, 8}, device()).set_requires_grad(true);
  const at::Tensor sum = silu_mul(leaf, leaf).sum();
  EXPECT_THAT(
      error_of([&] { torch::autograd::grad({sum}, {leaf}, {}, true, true); }), HasSubstr("differentiated again"));
}

// With kernels or without: a model that trains on one device must not be refused on the other.
TEST_P(CudaKernels, RefuseSecondDerivativesOfTokenPermutation) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    at::Tensor leaf = there(at::ones({2, 8}, type)).set_requires_grad(true);
    const TokenPermutation permutation = sort_by_expert(there(at::tensor({1, 0}, at::kLong).view({2, 1})), 2);
    const at::Tensor weights = there(at::ones({2, 1}, type));
    for (const at::Tensor& value :
         {permute_tokens(leaf, permutation),
          unpermute_rows(leaf, permutation),
          combine_tokens(leaf, weights, permutation)}) {
      EXPECT_THAT(
          error_of([&] { torch::autograd::grad({value.sum()}, {leaf}, {}, true, true); }),
          HasSubstr("differentiated again"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaKernels, testing::Bool(), place_name);

TEST(CudaModule, MustHaveTheVersionOfTheProgram) {
  cuda::Entry other = *cuda::first_entry;
  other.id.layout += 8;
  EXPECT_THAT(error_of([&] { cuda::Table{&other}; }), HasSubstr("build both from the same sources"));
}

TEST(CudaModule, MustHaveTheKernelsThatTheProgramUses) {
  const std::string error = error_of([] { cuda::Table{nullptr}; });
  EXPECT_THAT(error, HasSubstr("there are no kernels of "));
  EXPECT_THAT(error, HasSubstr("build the module together with the program"));
}

TEST(CudaModule, NamesTheOperatorWhoseKernelDoesNotLaunch) {
  cuda::Table broken = host_table();
  const SiluMulLaunches<float> kernels = {
      .forward = [](const float*, const float*, float*, int64_t) -> cuda::Status { return "no device"; },
      .backward = nullptr};
  broken.set(kernels);
  const cuda::TableScope scope(broken, at::kCPU);
  EXPECT_THAT(
      error_of([] { silu_mul(at::ones({3}), at::ones({3})); }),
      HasSubstr("silu_mul: its CUDA kernel could not be launched: no device"));
}

TEST(CudaModule, LoadsIfItWasBuilt) {
#ifdef LEHR_HAS_CUDA_MODULE
  const bool has_gpu = why_no_gpu().empty();
  const std::string reason = cuda::open_kernels();
  if (has_gpu) {  // "no kernel image": the GPU has an older architecture than those of the build
    EXPECT_THAT(reason, testing::AnyOf(testing::IsEmpty(), HasSubstr("no kernel image")));
  } else {  // the module is found, loaded and of this version, which needs no GPU
    EXPECT_THAT(reason, HasSubstr("do not run here: "));
  }
#else
  GTEST_SKIP() << "this build has no module";
#endif
}

}  // namespace
}  // namespace lehr::ops::test

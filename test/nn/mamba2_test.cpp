// Mamba-2 against a definition in plain ATen, over documents, padding and caches.
#include "lehr/nn/mamba2.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/nn/linear_attention_laws.h"

namespace lehr::nn {
namespace {
using ops::AttentionMask;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

const Mamba2Parameters kPlain{.hidden_size = 12, .num_heads = 4, .head_dim = 3, .num_groups = 2, .state_size = 5};

// Odd numbers of heads and groups, one group, no biases, another kernel; time steps that the limit cuts.
std::vector<Mamba2Parameters> variants() {
  auto odd = kPlain, one = kPlain, limited = kPlain;
  odd.num_heads = 9;
  odd.num_groups = 3;
  odd.head_dim = 2;
  one.num_groups = 1;
  one.num_heads = 2;
  one.head_dim = 35;
  one.state_size = 33;
  one.conv_kernel = 3;
  one.conv_bias = false;
  limited.min_time_step = limited.max_initial_step = 0.4;
  return {kPlain, odd, one, limited};
}

// Makes biases, skips and norms differ from each other.
void vary(Mamba2Impl& block) {
  const at::NoGradGuard no_grad;
  at::manual_seed(7);
  for (const auto& [name, parameter] : named_parameters(block)) {
    at::Tensor value = parameter->value();
    if (value.dim() == 1) {
      value.add_(at::randn_like(value) * 0.5);
    }
  }
}

Mamba2 made(const Mamba2Parameters& params) {
  auto block = test::made(Mamba2(params));
  vary(*block);
  return block;
}

// One row, head by head and token by token. The rows of in_proj are, for each group: z and x of its heads, its B, its
// C, and dt of its heads.
at::Tensor of_one_row(Mamba2Impl& block, const Mamba2Parameters& p, const at::Tensor& input) {
  const int64_t tokens = input.size(0), group = p.num_heads / p.num_groups, width = group * p.head_dim;
  const at::Tensor projected = input.matmul(block.in_proj->weight.t());
  const auto convolved = [&](const at::Tensor& stream, const at::Tensor& weight, const at::Tensor& bias, int64_t at) {
    const int64_t size = stream.size(1);
    at::Tensor sum = bias.defined() ? bias.narrow(0, at, size).expand({tokens, size}) : at::zeros_like(stream);
    for (int64_t j = 0; j < p.conv_kernel; ++j) {
      const at::Tensor shifted = at::cat({at::zeros({j, size}, at::kDouble), stream}).narrow(0, 0, tokens);
      sum = sum + shifted * weight.narrow(0, at, size).select(2, p.conv_kernel - 1 - j).squeeze(1);
    }
    return sum * sum.sigmoid();
  };
  const Mamba2ConvImpl& conv = *block.conv1d;
  std::vector<at::Tensor> groups;
  for (int64_t g = 0; g < p.num_groups; ++g) {
    const at::Tensor own =
        projected.narrow(1, g * (2 * width + 2 * p.state_size + group), 2 * width + 2 * p.state_size + group);
    const at::Tensor x = convolved(own.narrow(1, width, width), conv.x, conv.x_bias, g * width);
    const at::Tensor b = convolved(own.narrow(1, 2 * width, p.state_size), conv.b, conv.b_bias, g * p.state_size);
    const at::Tensor c =
        convolved(own.narrow(1, 2 * width + p.state_size, p.state_size), conv.c, conv.c_bias, g * p.state_size);
    std::vector<at::Tensor> heads;
    for (int64_t member = 0; member < group; ++member) {
      const int64_t head = g * group + member;
      const at::Tensor raw = own.select(1, 2 * width + 2 * p.state_size + member) + block.dt_bias[head];
      const at::Tensor soft = (1 + raw.exp()).log();
      const at::Tensor dt = at::where(soft > p.min_time_step, soft, at::full_like(soft, p.min_time_step));
      const at::Tensor mine = x.narrow(1, member * p.head_dim, p.head_dim);
      at::Tensor state = at::zeros({p.state_size, p.head_dim}, at::kDouble);
      std::vector<at::Tensor> ys;
      for (int64_t t = 0; t < tokens; ++t) {
        state = (-block.a_log[head].exp() * dt[t]).exp() * state + b[t].outer(dt[t] * mine[t]);
        ys.push_back(c[t].matmul(state) + block.d[head] * mine[t]);
      }
      heads.push_back(at::stack(ys));
    }
    const at::Tensor z = own.narrow(1, 0, width);
    const at::Tensor gated = at::cat(heads, 1) * z * z.sigmoid();
    groups.push_back(gated / (gated.square().mean(-1, true) + p.norm_eps).sqrt());
  }
  return (at::cat(groups, 1) * block.norm->weight).matmul(block.out_proj->weight.t());
}

TEST(Mamba2, EqualsItsDefinitionWithGradientsAndDocuments) {
  at::manual_seed(1);
  for (const auto& params : variants()) {
    auto block = made(params);
    test::expect_equal_to_definition_with_documents(
        block, [&](const at::Tensor& sequence) { return of_one_row(*block, params, sequence); });
  }
}

// Convolutions of padding are not zero, because of their biases.
TEST(Mamba2, IgnoresPaddingAtBothEnds) {
  at::manual_seed(2);
  auto block = made(kPlain);
  test::expect_padding_is_ignored(block);
}

TEST(Mamba2, HasTheSameResultsByTheCudaKernels) {
  at::manual_seed(4);
  for (const auto& params : variants()) {
    Mamba2 block(params);
    materialize(*block, at::kCPU, at::kFloat);
    block->reset_parameters({.seed = 11});
    vary(*block);
    test::expect_the_same_by_the_cuda_kernels(block);
  }
}

TEST(Mamba2, DecodingFromAStateEqualsOneForward) {
  at::manual_seed(3);
  for (const auto& params : variants()) {
    auto block = made(params);
    test::expect_decoding_equals_one_forward(block);
  }
}

// Three standard errors of 400 uniform numbers for the means.
TEST(Mamba2, BeginsWithTheDecaysAndTimeStepsOfThePaper) {
  auto params = kPlain;
  params.num_heads = params.num_groups = 400;
  Mamba2 block(params);
  materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 3});
  const at::Tensor decays = block->a_log.detach().exp(), steps = at::softplus(block->dt_bias.detach());
  EXPECT_GE(decays.min().item<double>(), 0.999);
  EXPECT_LE(decays.max().item<double>(), 16.001);
  EXPECT_NEAR(decays.mean().item<double>(), 8.5, 0.7);
  EXPECT_GE(steps.min().item<double>(), 0.000999);
  EXPECT_LE(steps.max().item<double>(), 0.1001);
  EXPECT_NEAR(steps.log().mean().item<double>(), std::log(0.01), 0.2);
  EXPECT_TRUE(at::equal(block->d.detach(), at::ones({400})));
  EXPECT_TRUE(at::equal(block->conv1d->x_bias.detach(), at::zeros({1200})));
}

TEST(Mamba2, RefusesWrongSizesAndMasks) {
  const auto message = [](const char* text) { return Throws<Error>(Property(&Error::what, HasSubstr(text))); };
  const auto with = [](auto change) {
    auto params = kPlain;
    change(params);
    return [params] { Mamba2{params}; };
  };
  EXPECT_THAT(with([](auto& p) { p.num_heads = 3; }), message("num_heads: expected a multiple of num_groups (2)"));
  EXPECT_THAT(with([](auto& p) { p.state_size = 0; }), message("state_size: expected 1 or more, found 0"));
  EXPECT_THAT(with([](auto& p) { p.conv_kernel = 17; }), message("conv_kernel: expected at most 16, found 17"));
  EXPECT_THAT(with([](auto& p) { p.min_time_step = -1; }), message("min_time_step: expected 0 or more, found -1"));
  EXPECT_THAT(with([](auto& p) { p.max_initial_step = 0; }), message("max_initial_step: expected at least"));

  auto block = made(kPlain);
  const at::Tensor x = at::randn({1, 4, 12}, at::kDouble);
  KeyValueCache cache;
  EXPECT_THAT(
      [&] {
        block(x, AttentionMask{.allowed = at::ones({4, 4}, at::kBool)});
      },
      message("allowed and bias are not supported"));
  EXPECT_THAT(
      [&] {
        block(x, AttentionMask{.document_ids = at::tensor({0, 0, 1, 1}).unsqueeze(0)}, &cache);
      },
      message("not supported with a cache"));
}

}  // namespace
}  // namespace lehr::nn

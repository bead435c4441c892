// Gated DeltaNet against a definition in plain ATen, over documents, padding and caches.
#include "lehr/nn/gated_delta_net.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/nn/linear_attention_laws.h"

namespace lehr::nn {
namespace {
using ops::AttentionMask;
using test::made;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

const GatedDeltaNetParameters kPlain{
    .hidden_size = 12, .num_key_heads = 2, .num_value_heads = 2, .key_head_dim = 4, .value_head_dim = 4};

// Value heads that share a key head, odd numbers of them, other sizes, another kernel.
std::vector<GatedDeltaNetParameters> variants() {
  auto grouped = kPlain, wide = kPlain;
  grouped.num_key_heads = 3;
  grouped.num_value_heads = 9;
  grouped.value_head_dim = 3;
  wide.num_key_heads = 1;
  wide.num_value_heads = 2;
  wide.key_head_dim = 33;
  wide.value_head_dim = 5;
  wide.conv_kernel = 3;
  return {kPlain, grouped, wide};
}

// One row, head by head and token by token. The rows of in_proj_qkvz are, for each key head: q, k, the v of its value
// heads, and their z; those of in_proj_ba their b, and their a.
at::Tensor of_one_row(GatedDeltaNetImpl& block, const GatedDeltaNetParameters& p, const at::Tensor& x) {
  const int64_t tokens = x.size(0), group = p.num_value_heads / p.num_key_heads;
  const int64_t key_rows = 2 * p.key_head_dim + 2 * group * p.value_head_dim;
  const at::Tensor projected = x.matmul(block.in_proj_qkvz->weight.t());
  const at::Tensor ba = x.matmul(block.in_proj_ba->weight.t());
  const auto convolved = [&](const at::Tensor& stream, const at::Tensor& weight) {
    at::Tensor sum = at::zeros_like(stream);
    for (int64_t j = 0; j < p.conv_kernel; ++j) {
      const at::Tensor shifted = at::cat({at::zeros({j, stream.size(1)}, at::kDouble), stream}).narrow(0, 0, tokens);
      sum = sum + shifted * weight.select(2, p.conv_kernel - 1 - j).squeeze(1);
    }
    return sum * sum.sigmoid();
  };
  const auto normed = [](const at::Tensor& rows) { return rows / (rows.square().sum(-1, true) + 1e-6).sqrt(); };
  std::vector<at::Tensor> outputs;
  for (int64_t head = 0; head < p.num_value_heads; ++head) {
    const int64_t key_head = head / group, member = head % group;
    const auto part = [&](int64_t offset, int64_t size) {
      return projected.narrow(1, key_head * key_rows + offset, size);
    };
    const auto rows = [](const at::Tensor& weight, int64_t at, int64_t size) {
      return weight.narrow(0, at * size, size);
    };
    const int64_t values = 2 * p.key_head_dim, value = values + member * p.value_head_dim;
    const at::Tensor q =
        normed(convolved(part(0, p.key_head_dim), rows(block.conv1d->query, key_head, p.key_head_dim))) /
        std::sqrt(static_cast<double>(p.key_head_dim));
    const at::Tensor k =
        normed(convolved(part(p.key_head_dim, p.key_head_dim), rows(block.conv1d->key, key_head, p.key_head_dim)));
    const at::Tensor v = convolved(part(value, p.value_head_dim), rows(block.conv1d->value, head, p.value_head_dim));
    const at::Tensor z = part(value + group * p.value_head_dim, p.value_head_dim);
    const at::Tensor beta = ba.select(1, key_head * 2 * group + member).sigmoid();
    const at::Tensor a = ba.select(1, key_head * 2 * group + group + member);
    const at::Tensor decay = (-block.a_log[head].exp() * (1 + (a + block.dt_bias[head]).exp()).log()).exp();
    at::Tensor state = at::zeros({p.key_head_dim, p.value_head_dim}, at::kDouble);
    std::vector<at::Tensor> ys;
    for (int64_t t = 0; t < tokens; ++t) {
      state = state * decay[t];
      state = state + k[t].outer(beta[t] * (v[t] - k[t].matmul(state)));
      ys.push_back(q[t].matmul(state));
    }
    const at::Tensor y = at::stack(ys);
    const at::Tensor y_normed = y / (y.square().mean(-1, true) + p.norm_eps).sqrt() * block.norm->weight;
    outputs.push_back(y_normed * z * z.sigmoid());
  }
  return at::cat(outputs, 1).matmul(block.out_proj->weight.t());
}

TEST(GatedDeltaNet, EqualsItsDefinitionWithGradientsAndDocuments) {
  at::manual_seed(1);
  for (const auto& params : variants()) {
    auto block = made(GatedDeltaNet(params));
    test::expect_equal_to_definition_with_documents(
        block, [&](const at::Tensor& sequence) { return of_one_row(*block, params, sequence); });
  }
}

TEST(GatedDeltaNet, IgnoresPaddingAtBothEnds) {
  at::manual_seed(2);
  auto block = made(GatedDeltaNet(kPlain));
  EXPECT_EQ(test::expect_padding_is_ignored(block).abs().max().item<double>(), 0);
}

TEST(GatedDeltaNet, HasTheSameResultsByTheCudaKernels) {
  at::manual_seed(4);
  for (const auto& params : variants()) {
    GatedDeltaNet block(params);
    materialize(*block, at::kCPU, at::kFloat);
    block->reset_parameters({.seed = 11});
    test::expect_the_same_by_the_cuda_kernels(block);
  }
}

TEST(GatedDeltaNet, DecodingFromAStateEqualsOneForward) {
  at::manual_seed(3);
  for (const auto& params : variants()) {
    auto block = made(GatedDeltaNet(params));
    test::expect_decoding_equals_one_forward(block);
  }
}

TEST(GatedDeltaNet, BeginsWithTheDecaysOfThePaper) {
  auto params = kPlain;
  params.num_key_heads = params.num_value_heads = 400;
  GatedDeltaNet block(params);
  materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 3});
  const at::Tensor decays = block->a_log.detach().exp();
  EXPECT_GE(decays.min().item<double>(), 0.0099);
  EXPECT_LE(decays.max().item<double>(), 16.001);
  EXPECT_NEAR(decays.mean().item<double>(), 8, 0.7);  // three standard errors of 400 uniform numbers
  EXPECT_TRUE(at::equal(block->dt_bias.detach(), at::ones({400})));
}

TEST(GatedDeltaNet, RefusesWrongSizesAndMasks) {
  const auto message = [](const char* text) { return Throws<Error>(Property(&Error::what, HasSubstr(text))); };
  auto params = kPlain;
  params.num_value_heads = 3;
  EXPECT_THAT([&] { GatedDeltaNet{params}; }, message("num_value_heads: expected a multiple of num_key_heads (2)"));
  params = kPlain;
  params.key_head_dim = 0;
  EXPECT_THAT([&] { GatedDeltaNet{params}; }, message("key_head_dim: expected 1 or more, found 0"));
  params = kPlain;
  params.conv_kernel = 17;
  EXPECT_THAT([&] { GatedDeltaNet{params}; }, message("conv_kernel: expected at most 16, found 17"));

  auto block = made(GatedDeltaNet(kPlain));
  const at::Tensor x = at::randn({1, 4, 12}, at::kDouble);
  KeyValueCache cache;
  EXPECT_THAT(
      [&] {
        block(x, AttentionMask{.allowed = at::ones({4, 4}, at::kBool)});
      },
      message("allowed and bias are not supported"));
  EXPECT_THAT(
      [&] {
        block(x, AttentionMask{.document_ids = at::tensor({0, 1, 0, 0}).unsqueeze(0)});
      },
      message("a document is in several pieces"));
  EXPECT_THAT(
      [&] {
        block(x, AttentionMask{.document_ids = at::tensor({0, 0, 1, 1}).unsqueeze(0)}, &cache);
      },
      message("not supported with a cache"));
}

}  // namespace
}  // namespace lehr::nn

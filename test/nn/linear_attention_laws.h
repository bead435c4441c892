// What holds for every block of linear attention: its definition over documents, padding, and decoding from states.
#pragma once

#include "lehr/nn/linear_attention.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "test/nn/blocks.h"
#include "test/ops/host_launch.h"

namespace lehr::nn::test {

/// Compares block(x) with the definition of one sequence (T, 12), where each row is one and where it has four
/// documents.
template <class Holder, class Definition>
void expect_equal_to_definition_with_documents(Holder& block, const Definition& of_sequence) {
  const auto definition = [&](const at::Tensor& input, const std::vector<int64_t>& borders) {
    std::vector<at::Tensor> sequences;
    for (int64_t row = 0; row < input.size(0); ++row) {
      for (size_t i = 0; i + 1 < borders.size(); ++i) {
        sequences.push_back(of_sequence(input[row].slice(0, borders[i], borders[i + 1])));
      }
    }
    return at::cat(sequences).view(input.sizes());
  };
  const at::Tensor ids = at::tensor({0, 0, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 3}).unsqueeze(0);
  const std::vector<int64_t> one{0, 13}, four{0, 5, 6, 9, 13};
  const at::Tensor x = at::randn({2, 13, 12}, at::kDouble);
  expect_equal_to_definition(
      "plain",
      *block,
      [&](const at::Tensor& input) { return block(input); },
      [&](const at::Tensor& input) { return definition(input, one); },
      x);
  expect_equal_to_definition(
      "documents",
      *block,
      [&](const at::Tensor& input) { return block(input, ops::AttentionMask{.document_ids = ids}); },
      [&](const at::Tensor& input) { return definition(input, four); },
      x);
  EXPECT_GT(worst_error(block(x), definition(x, four)), 0.01) << "leaks would not show";
}

/// Compares rows that are padded on either side with the same rows alone. Returns the outputs at padding.
template <class Holder>
at::Tensor expect_padding_is_ignored(Holder& block) {
  const at::Tensor x = at::randn({2, 80, 12}, at::kDouble);
  at::Tensor padding = at::ones({2, 80}, at::kBool);
  padding[0].narrow(0, 0, 7).fill_(false);
  padding[1].narrow(0, 71, 9).fill_(false);
  const at::Tensor y = block(x, ops::AttentionMask{.key_padding = padding});
  EXPECT_LE(worst_error(y[0].slice(0, 7), block(x.narrow(0, 0, 1).slice(1, 7))[0]), 1e-12);
  EXPECT_LE(worst_error(y[1].slice(0, 0, 71), block(x.narrow(0, 1, 1).slice(1, 0, 71))[0]), 1e-12);
  return y.masked_select(padding.logical_not().unsqueeze(-1));
}

/// Compares calls with a cache, of one or more tokens each, with one call.
template <class Holder>
void expect_decoding_equals_one_forward(Holder& block) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({2, 90, 12}, at::kDouble);
  const at::Tensor whole = block(x);
  const std::vector<std::vector<int64_t>> calls{{70, 1, 1, 5, 13}, {1, 1, 1, 1, 1, 85}, {2, 88}};
  for (const auto& counts : calls) {
    KeyValueCache cache;
    int64_t first = 0;
    for (const int64_t count : counts) {
      EXPECT_EQ(cache.length(), first);
      const at::Tensor y = block(x.narrow(1, first, count), ops::AttentionMask{}, &cache);
      EXPECT_LE(worst_error(y, whole.narrow(1, first, count)), 1e-12) << "after " << first;
      first += count;
    }
  }
}

/// Compares a block in float32 with itself by the CUDA kernels, which run as loops on the host, on packed documents. On
/// a GPU documents are known by their ends, not by ids.
template <class Holder>
void expect_the_same_by_the_cuda_kernels(Holder& block) {
  const at::Tensor x = at::randn({2, 140, 12}), weights = at::randn({2, 140, 12});
  const at::Tensor ids = at::arange(140).div(50, "floor").expand({2, 140}).contiguous();
  const ops::AttentionMask mask{.sequence_ends = ops::sequence_ends(ids, {})};
  const auto run = [&] {
    const at::Tensor input = x.clone().set_requires_grad(true);
    const at::Tensor y = block(input, mask);
    (y * weights).sum().backward();
    std::vector<at::Tensor> results{y, input.grad()};
    for (const auto& [name, parameter] : named_parameters(*block)) {
      at::Tensor value = parameter->value();
      results.push_back(value.grad());
      value.mutable_grad().reset();
    }
    return results;
  };
  const std::vector<at::Tensor> expected = run();
  const int64_t launches = ops::test::HostLaunch::launches();
  const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
  const std::vector<at::Tensor> found = run();
  EXPECT_GT(ops::test::HostLaunch::launches(), launches);
  for (size_t i = 0; i < expected.size(); ++i) {
    // float32 with other orders of sums; the kernel of the CPU also adds up decays in float32.
    EXPECT_LE(worst_error(found[i], expected[i]), 1e-4) << "result " << i;
  }
}

}  // namespace lehr::nn::test

// The attention kernels, called directly as in ops/attention/attention_cpu.cpp.
#include <gtest/gtest.h>

#include <limits>

#include "lehr/ops/attention/kernels.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

template <class T>
T* elements(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

at::Tensor scratch_of(int64_t floats, float filled_with) {
  return at::full({floats}, filled_with, at::kFloat);
}

// Output and gradients of two key heads that four query heads share; the sizes leave padding of every kind.
template <class T>
Tensors outcome(at::ScalarType type, float filled_with) {
  constexpr int64_t queries = 70, keys = 131, size = 33, value_size = 20;
  at::manual_seed(1);
  const at::Tensor q = random_tensor({1, queries, 4, size}, type), k = random_tensor({1, keys, 2, size}, type);
  const at::Tensor v = random_tensor({1, keys, 2, value_size}, type);
  const at::Tensor dout = random_tensor({1, queries, 4, value_size}, type);
  Tensors results = {at::empty_like(dout), at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const at::Tensor lse = at::empty({1, 4, queries}, at::kFloat);
  const AttentionCall<T> call{
      .q = elements<T>(q),
      .k = elements<T>(k),
      .v = elements<T>(v),
      .out = elements<T>(results[0]),
      .lse = elements<float>(lse),
      .first_keys = nullptr,
      .sinks = nullptr,
      .batch = 1,
      .queries = queries,
      .keys = keys,
      .query_heads = 4,
      .key_heads = 2,
      .size = size,
      .value_size = value_size,
      .window = 90,
      .scale = 0.2F,
      .softcap = 5};
  const AttentionBackwardCall<T> backward{
      .forward = call,
      .dout = elements<T>(dout),
      .dq = elements<T>(results[1]),
      .dk = elements<T>(results[2]),
      .dv = elements<T>(results[3])};
  for (int64_t head = 0; head < 2; ++head) {
    const at::Tensor scratch = scratch_of(attention_forward_scratch(call), filled_with);
    cpu_kernels<AttentionKernels<T>>().forward(call, elements<float>(scratch), head, 0, 1);
  }
  for (int64_t head = 0; head < 2; ++head) {
    const at::Tensor scratch = scratch_of(attention_backward_scratch(call), filled_with);
    cpu_kernels<AttentionKernels<T>>().backward(backward, elements<float>(scratch), head);
  }
  return results;
}

template <class T>
void expect_no_trace_of_scratch(at::ScalarType type, const std::string& where) {
  const Tensors clean = outcome<T>(type, 0);
  const Tensors dirty = outcome<T>(type, std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < clean.size(); ++i) {
    EXPECT_TRUE(at::equal(clean[i], dirty[i])) << where << ", result " << i;
  }
}

TEST(AttentionScratch, MayHaveAnyInitialContent) {
  everywhere([](at::ScalarType type, const std::string& where) {
    if (type == at::kFloat) {
      expect_no_trace_of_scratch<float>(type, where);
    } else if (type == at::kBFloat16) {
      expect_no_trace_of_scratch<Bf16>(type, where);
    }
  });
}

}  // namespace
}  // namespace lehr::ops::test

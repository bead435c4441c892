// The gradient of an embedding row on the CPU: the sum over all tokens with its id.
#pragma once

#include "lehr/ops/embedding/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

template <class T>
void sum_rows(const T* rows, const int64_t* places, int64_t count, int64_t size, T* sum) {
  for_each_vector<T>(
      size, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
        Vec<T> total{};
        for (int64_t row = 0; row < count; ++row) {
          total += load(rows + places[row] * size + i, lanes);
        }
        store(sum + i, total, lanes);
      });
}

template <class T>
constexpr EmbeddingKernels<T> kEmbedding = {.sum_rows = sum_rows<T>};

}  // namespace

LEHR_KERNELS(kEmbedding<float>)
LEHR_KERNELS(kEmbedding<double>)
LEHR_KERNELS(kEmbedding<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH

// Attention, GEMM and the peak of the registers in bfloat16 for AVX512-BF16, which only some CPUs with AVX-512 have.
#include <immintrin.h>

#define LEHR_ARCH avx512bf16
#define LEHR_VECTOR_BYTES 64
#define LEHR_PAIRS
#include "lehr/ops/kernels/operators.inl"
#include "lehr/ops/kernels/table.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {
// Only the kernels that have a bfloat16 form.
#include "lehr/ops/kernels/attention.inl"
#include "lehr/ops/kernels/gemm.inl"
#include "lehr/ops/kernels/multiply_add.inl"
}  // namespace

void put_pairs(KernelTable<Bf16>& table) {
  table.multiply_adds = multiply_adds<Bf16>;
  table.attention_forward = attention_forward<Bf16>;
  table.attention_backward = attention_backward<Bf16>;
}

const GemmKernels& gemm_kernels() {
  return kGemm<Bf16, 2>;
}

}  // namespace lehr::ops::LEHR_ARCH

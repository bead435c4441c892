// Products of bfloat16 by the instructions of AVX512-BF16, which only some CPUs with AVX-512 have.
#include <immintrin.h>

#define LEHR_ARCH avx512bf16
#define LEHR_VECTOR_BYTES 64
#include "lehr/ops/kernels/table.h"

namespace lehr::ops::LEHR_ARCH {
namespace {
#include "lehr/ops/kernels/vec.inl"
// What it is made of.
#include "lehr/ops/kernels/gemm.inl"
}  // namespace

const GemmKernels& gemm_kernels() {
  return kGemm<Bf16>;
}

}  // namespace lehr::ops::LEHR_ARCH

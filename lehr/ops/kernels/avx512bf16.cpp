// Kernels for AVX512-BF16, which only some CPUs with AVX-512 have: those with a form for pairs of bfloat16.
#include <immintrin.h>

#define LEHR_ARCH avx512bf16
#define LEHR_VECTOR_BYTES 64
#define LEHR_PAIRS
#include "lehr/ops/kernels/operators.inl"  // every kernel.inl; written by CMakeLists.txt

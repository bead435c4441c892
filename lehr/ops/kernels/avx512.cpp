// Kernels for AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>

#define LEHR_ARCH avx512
#define LEHR_VECTOR_BYTES 64
#include "lehr/ops/kernels/operators.inl"  // every kernel.inl; written by CMakeLists.txt

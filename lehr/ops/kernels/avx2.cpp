// Kernels for AVX2 with FMA.
#define LEHR_ARCH avx2
#define LEHR_VECTOR_BYTES 32
#include "lehr/ops/kernels/operators.inl"  // every kernel.inl; written by CMakeLists.txt

// The kernels for AVX2 and FMA.
#define LEHR_ARCH avx2
#define LEHR_VECTOR_BYTES 32
#include "lehr/ops/kernels/all.inl"

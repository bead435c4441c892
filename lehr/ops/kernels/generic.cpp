// The kernels for any CPU of the target's baseline.
#define LEHR_ARCH generic
#define LEHR_VECTOR_BYTES 16
#include "lehr/ops/kernels/all.inl"

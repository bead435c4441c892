// Kernels for the baseline instruction set of the target.
#define LEHR_ARCH generic
#define LEHR_VECTOR_BYTES 16
#include "lehr/ops/kernels/operators.inl"  // every kernel.inl; written by CMakeLists.txt

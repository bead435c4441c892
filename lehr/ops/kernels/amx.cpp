// Kernels for AMX, in bfloat16: those of operators that have a form for tiles.
#include <immintrin.h>

#define LEHR_ARCH amx
#define LEHR_VECTOR_BYTES 64
#define LEHR_PAIRS
#define LEHR_TILES
#include "lehr/ops/kernels/amx_operators.inl"  // every amx.inl of an operator; written by CMakeLists.txt

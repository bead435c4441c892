// Included by every kernel.cu: the language of kernel bodies, and `Launch`, which launches them. Tests that compile
// kernel.cu for the host define a Launch of their own first (test/ops/host_launch.h).
//
// Launch::groups(body, count, threads) runs body(group, index) for every index below `count`, each by a group of that
// many threads. Launch::warps does so for at most 32 threads, and Launch::blocks for whole warps; each of the two takes
// half the time to compile.
#pragma once

#include "lehr/ops/cuda/portable.h"
#ifdef __CUDACC__
#include "lehr/ops/cuda/launch.h"
#endif

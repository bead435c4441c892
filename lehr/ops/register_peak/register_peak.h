// The peak of this machine's CPU: the FLOP/s that its registers execute.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Measures the FLOP/s of multiply-adds in registers: no load, no store, no library. Each of num_threads() threads runs
/// them at the same time; its best of many slices counts, so that other work on the machine does not lower the figure.
/// Takes about `seconds`. The instruction set is the one that Lehr's kernels use (kernels/slot.h).
///
/// float32 and float64 are multiply-adds of vectors. bfloat16 is AMX's tile matmul or AVX512-BF16's dot product where
/// the CPU has one, and else float32, in which bfloat16 is then computed. float16 counts as float32.
///
/// The result is that of one thread, as the mean over the threads. Throws a usage error for a dtype that is not
/// floating.
double register_peak_per_thread(at::ScalarType dtype, double seconds = 0.05);

}  // namespace lehr::ops

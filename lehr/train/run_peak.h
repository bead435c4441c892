// The peak of all devices of a run.
#pragma once

#include "lehr/train/ranks.h"

namespace lehr::train {

/// Returns the peak FLOP/s of all devices of a run together, the denominator of its MFU. Every rank must call it. A GPU
/// counts with the dense figure of its data sheet, or, if that is unknown, with the fastest matmul. On CPUs all ranks
/// measure at the same time, and ranks that share cores never count more than those. It never depends on the speed of a
/// run.
double peak_flops_of_run(at::Device device, at::ScalarType dtype, const Ranks& ranks);

}  // namespace lehr::train

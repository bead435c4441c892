// Declarations that the files of the module liblehr_cuda.so share.
#pragma once

#include "lehr/ops/cuda/slot.h"

namespace lehr::ops::cuda {

/// Looks up one of the kernels on the current device. Returns null, or CUDA's message if the module has no code for it.
/// All kernels are compiled for the same architectures, so one check is enough.
Status find_kernel();

}  // namespace lehr::ops::cuda

// What the files of the module liblehr_cuda.so give each other.
#pragma once

#include "lehr/ops/cuda/table.h"

namespace lehr::ops::cuda {

void fill_norms(Table& table);
void fill_rest(Table& table);

/// Asks CUDA for one of the kernels on the current device: null, or what it says where it has no code for it. All are
/// compiled for the same architectures, so one speaks for all.
Status find_kernel();

}  // namespace lehr::ops::cuda

// What the files of the module liblehr_cuda.so give each other.
#pragma once

#include "lehr/ops/cuda/table.h"

namespace lehr::ops::cuda {

void fill_norms(Table& table);
void fill_rest(Table& table);

}  // namespace lehr::ops::cuda

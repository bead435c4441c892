// What this machine reaches at best, measured: the lines that a profile draws its figures against.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::train {

/// With as many threads as the process has, on the CPU. Of several ranks on one machine this is what one reaches while
/// the others wait; in a step they share the machine.
struct MachineLimits {
  double flops = 0;             ///< A second, in matrix products of one type.
  double bytes_per_second = 0;  ///< Read and written together, in memory that no cache holds.
};

/// Takes about 2 * `seconds`. Products are square, of up to 4096 rows, by whichever library runs ours (ops/matmul.h).
/// Memory is the best of a copy, c = a + s b, and an update in place of 256 MB tensors, as caches of servers hold a
/// good part of 64 MB; what a processor reads of a line before it writes it does not count.
MachineLimits measure_limits(at::ScalarType dtype, double seconds);

}  // namespace lehr::train

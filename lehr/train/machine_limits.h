// The limits of a machine: the peak of its arithmetic, the rate of its matmuls and its memory bandwidth.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/metric/throughput.h"

namespace lehr::train {

/// The limits against which a profile compares its figures.
struct MachineLimits {
  double flops = 0;             ///< Peak FLOP/s in one dtype.
  double float8_flops = 0;      ///< Peak FLOP/s in float8; 0: unknown, or no other than `flops`.
  double bytes_per_second = 0;  ///< Reads and writes together, in memory larger than any cache.
};

/// Returns the peak FLOP/s of this process on the CPU: those of multiply-adds in registers
/// (ops/register_peak/register_peak.h) on the threads of the process, or on its usable cores if they are fewer. Takes
/// about `seconds`.
double cpu_peak_flops(at::ScalarType dtype, double seconds = 0.05);

/// Returns the FLOP/s of the fastest square matmul of random numbers found on `device` within about `seconds`, by
/// ops::product (ops/matmul/matmul.h) or at::mm, whichever is faster. Equal numbers would draw less power, and so run
/// faster on a GPU. `clock` gives the time; only tests replace it.
double best_matmul_flops(
    at::Device device,
    at::ScalarType dtype,
    double seconds,
    const metric::ThroughputMeter::Clock& clock = metric::ThroughputMeter::steady_seconds);

/// Returns the CPU's peak and memory bandwidth. Takes about 2 * `seconds`. Memory bandwidth is the best of three
/// operations on 256 MiB tensors, since server caches hold a large part of 64 MB: a copy, c = a + s b, and an in-place
/// update. Reads for write allocation do not count. With several ranks on one machine these are the limits of one rank
/// while the others wait; in a step they share the machine. `clock` gives the time of the bandwidth.
MachineLimits measure_limits(
    at::ScalarType dtype,
    double seconds,
    const metric::ThroughputMeter::Clock& clock = metric::ThroughputMeter::steady_seconds);

}  // namespace lehr::train

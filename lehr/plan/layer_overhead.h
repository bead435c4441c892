// The fixed time of a layer, measured on this computer's CPU.
#pragma once

#include "lehr/metric/throughput.h"

namespace lehr::plan {

/// Returns the seconds that a decoder layer takes in forward, or in backward, for so few tokens and so small sizes that
/// there is almost nothing to compute: allocations, dispatch and autograd. It is the mean of both, by the fastest step
/// of a model of such layers. Takes about `seconds` by `clock`.
double layer_overhead(double seconds, const metric::ThroughputMeter::Clock& clock);

}  // namespace lehr::plan

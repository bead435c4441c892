// The time of a recording's computation on the device of a plan.
#pragma once

#include <vector>

#include "lehr/emulate/recording.h"
#include "lehr/plan/plan.h"

namespace lehr::emulate {

/// Returns the seconds of each event of `recording`: those of computation by the plan's cost model of operators
/// (plan::computation_of), 0 for others. The layer overhead of an action is spread over its computation.
std::vector<double> seconds_of(const Recording& recording, const plan::Plan& plan);

}  // namespace lehr::emulate

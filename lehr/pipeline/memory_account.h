// Memory of a rank of a simulated pipeline over time.
#pragma once

#include <vector>

#include "lehr/pipeline/timeline.h"

namespace lehr::pipeline {

/// Returns the bytes that a rank holds, one point per change, according to PipelineCosts (whose vectors must have one
/// value per stage). `list` is the rank's timed actions. The result is empty if all bytes are zero.
std::vector<MemoryPoint> memory_over_time(
    const std::vector<TimedAction>& list, const Program& program, const PipelineCosts& costs);

}  // namespace lehr::pipeline

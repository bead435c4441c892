// What a rank of a simulated pipeline holds over time.
#pragma once

#include <vector>

#include "lehr/pipeline/simulate.h"

namespace lehr::pipeline {

/// The bytes that a rank holds, from each change to the next one, after PipelineCosts (with one value for each stage).
/// `list` is the rank's timed actions. Empty if there are no bytes at all.
std::vector<MemoryPoint> memory_over_time(
    const std::vector<TimedAction>& list, const Program& program, const PipelineCosts& costs);

}  // namespace lehr::pipeline

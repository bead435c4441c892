// Checks for silent data corruption in a run ([reliability]).
#pragma once

#include <cstdint>

#include "lehr/train/run.h"

namespace lehr::train {

/// Compares the weights of replicas and their reduced gradients in step `step`, before its update, if
/// reliability.hash_every_n_steps asks for it. Throws a runtime error that names rank, tensor and step if they differ,
/// or logs it, as reliability.on_corruption says. All ranks must call it, and get the same error.
void check_replicas(const Run& run, int64_t step);

/// Runs forward and backward of the first micro-batch of step `step` twice if reliability.recompute_every_n_steps asks
/// for it, and compares loss and gradients bit for bit. If they differ, a third run tells whether the difference lasts.
/// Reports like check_replicas. `batch` and `first_row` are those of TrainStep::forward_backward.
void check_arithmetic(const Run& run, const Batch& batch, int64_t first_row, int64_t step);

}  // namespace lehr::train

// Builders of schedules, one per family: they return the computations of all ranks. Callers have checked the options.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/pipeline/action.h"

namespace lehr::pipeline {

/// The kind of backward pass of a schedule.
enum class BackwardPass {
  none,   ///< No backward: inference.
  full,   ///< Whole backwards, B.
  split,  ///< Backwards split into I (dgrad) and W (wgrad).
};

using RankLists = std::vector<std::vector<Actions>>;  ///< Indexed by rank, each in order of execution.

/// 1F1B: warm-up of P - 1 - r forwards on rank r, then one forward and one backward in turn (PipeDream-flush,
/// https://arxiv.org/abs/2006.09503).
RankLists build_1f1b(int64_t num_ranks, int64_t num_microbatches);

/// Breadth-first schedule (https://arxiv.org/abs/2211.05953): all micro-batches pass a stage before the rank's next
/// stage begins. With one stage per rank it is GPipe (https://arxiv.org/abs/1811.06965).
RankLists build_looped_bfs(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, BackwardPass pass);

/// Interleaved 1F1B (https://arxiv.org/abs/2104.04473). Micro-batches pass in rounds of about P. If the rounds do not
/// divide them evenly, the first rounds have one more.
RankLists build_interleaved(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, BackwardPass pass);

/// ZB-H1 (`depth` 1) and ZB-H2 (`depth` 2) of https://arxiv.org/abs/2401.10241: rank r warms up with depth * (P - 1 -
/// r) forwards, and its first W follows depth * r backwards after its I, so that every rank holds the same number of
/// micro-batches.
RankLists build_zero_bubble_h(int64_t num_ranks, int64_t num_microbatches, int64_t depth);

/// ZB-V (https://arxiv.org/abs/2405.15362).
RankLists build_zero_bubble_v(int64_t num_ranks, int64_t num_microbatches);

/// DualPipe (https://arxiv.org/abs/2412.19437) cut in half (DualPipeV): each rank has two stages of a V, and most
/// forwards share an entry with a backward of the rank's other stage.
RankLists build_dual_pipe_v(int64_t num_ranks, int64_t num_microbatches);

}  // namespace lehr::pipeline

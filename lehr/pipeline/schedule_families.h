// The builders of schedules, a family each: the lists of computations of all ranks. Options were checked before.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/pipeline/action.h"

namespace lehr::pipeline {

/// What comes after a forward.
enum class BackwardPass {
  none,   ///< Inference.
  full,   ///< Backwards as a whole, B.
  split,  ///< In two halves, I and W.
};

using RankLists = std::vector<std::vector<Actions>>;  ///< By rank, in order.

/// Warm-up of P - 1 - r forwards, then one forward and one backward in turn (PipeDream-flush,
/// https://arxiv.org/abs/2006.09503).
RankLists build_1f1b(int64_t num_ranks, int64_t num_microbatches);

/// Breadth first (https://arxiv.org/abs/2211.05953): all microbatches through a stage before the rank's next stage.
/// With one stage a rank it is GPipe (https://arxiv.org/abs/1811.06965).
RankLists build_looped_bfs(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, BackwardPass pass);

/// Interleaved 1F1B (https://arxiv.org/abs/2104.04473). Microbatches come in rounds of about P; where they do not
/// divide evenly, the first rounds hold one more.
RankLists build_interleaved(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, BackwardPass pass);

/// ZB-H1 (`depth` 1) and ZB-H2 (`depth` 2) of https://arxiv.org/abs/2401.10241: warm-up of depth * (P - 1 - r)
/// forwards, and weight halves that begin depth * r backwards late, so that every rank holds the same number of
/// microbatches.
RankLists build_zero_bubble_h(int64_t num_ranks, int64_t num_microbatches, int64_t depth);

/// ZB-V (https://arxiv.org/abs/2405.15362).
RankLists build_zero_bubble_v(int64_t num_ranks, int64_t num_microbatches);

/// DualPipe (https://arxiv.org/abs/2412.19437) cut in half: each rank keeps two stages of a V, and most forwards share
/// an entry with a backward of the rank's other stage.
RankLists build_dual_pipe_v(int64_t num_ranks, int64_t num_microbatches);

}  // namespace lehr::pipeline

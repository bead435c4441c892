// Placement of pipeline stages on ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lehr::pipeline {

/// The order in which stages are placed on P ranks, each of which has the same number of stages.
enum class StageOrder {
  loop,  ///< Stage s is on rank s mod P: 0 1 2 3 0 1 2 3. Every boundary crosses ranks.
  v,     ///< Zigzag: 0 1 2 3 3 2 1 0. No transfer at its turning points; rank 0 has the first and the last stage.
};

/// Returns "loop" or "v".
std::string_view name_of(StageOrder placement);

/// Returns the rank of every stage, for `num_ranks` ranks with `num_stages_per_rank` stages each. Throws a usage error
/// unless both are at least 1.
std::vector<int64_t> place_stages(StageOrder placement, int64_t num_ranks, int64_t num_stages_per_rank);

}  // namespace lehr::pipeline

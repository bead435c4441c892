// Which rank of a pipeline has which stages.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lehr::pipeline {

/// How stages are laid out over P ranks that have the same number of them each.
enum class Placement {
  loop,  ///< Stage s is on rank s mod P: 0 1 2 3 0 1 2 3. Every boundary crosses ranks.
  v,     ///< There and back: 0 1 2 3 3 2 1 0. The turning points cross no ranks; rank 0 has the first and last stage.
};

/// "loop" or "v".
std::string_view name_of(Placement placement);

/// The rank of every stage, for `num_ranks` ranks with `num_stages_per_rank` stages each. Throws a usage error unless
/// both are at least 1.
std::vector<int64_t> place_stages(Placement placement, int64_t num_ranks, int64_t num_stages_per_rank);

}  // namespace lehr::pipeline

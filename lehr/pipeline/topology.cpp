// Loop and V placements of stages.
#include "lehr/pipeline/topology.h"

#include "lehr/base/error.h"

namespace lehr::pipeline {

std::string_view name_of(StageOrder placement) {
  return placement == StageOrder::loop ? "loop" : "v";
}

std::vector<int64_t> place_stages(StageOrder placement, int64_t num_ranks, int64_t num_stages_per_rank) {
  require(num_ranks >= 1, "pipeline: expected at least 1 rank, found {}", num_ranks);
  require(num_stages_per_rank >= 1, "pipeline: expected at least 1 stage per rank, found {}", num_stages_per_rank);
  std::vector<int64_t> rank_of_stage;
  for (int64_t round = 0; round < num_stages_per_rank; ++round) {
    const bool back = placement == StageOrder::v && round % 2 == 1;
    for (int64_t i = 0; i < num_ranks; ++i) {
      rank_of_stage.push_back(back ? num_ranks - 1 - i : i);
    }
  }
  return rank_of_stage;
}

}  // namespace lehr::pipeline

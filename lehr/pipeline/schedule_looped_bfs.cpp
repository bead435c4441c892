// Breadth-first schedules: GPipe, its form with several stages per rank, and inference.
#include "lehr/pipeline/schedule_families.h"

namespace lehr::pipeline {

RankLists build_looped_bfs(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, BackwardPass pass) {
  RankLists ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    auto& list = ranks.emplace_back();
    for (int64_t local = 0; local < stages_per_rank; ++local) {
      for (int64_t m = 0; m < num_microbatches; ++m) {
        list.push_back({{ActionKind::forward, local * num_ranks + rank, m}});
      }
    }
    if (pass == BackwardPass::none) {
      continue;
    }
    // Latest first: the activations that were computed last are freed first.
    for (int64_t local = stages_per_rank - 1; local >= 0; --local) {
      for (int64_t m = num_microbatches - 1; m >= 0; --m) {
        list.push_back({{ActionKind::backward_full, local * num_ranks + rank, m}});
      }
    }
  }
  return ranks;
}

}  // namespace lehr::pipeline

// 1F1B in its classic form: every rank holds as few micro-batches as the pipeline allows.
#include <algorithm>

#include "lehr/pipeline/schedule_families.h"

namespace lehr::pipeline {

RankLists build_1f1b(int64_t num_ranks, int64_t num_microbatches) {
  RankLists ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const int64_t warm_up = std::min(num_ranks - 1 - rank, num_microbatches);
    auto& list = ranks.emplace_back();
    for (int64_t i = 0; i < num_microbatches + warm_up; ++i) {
      if (i < num_microbatches) {
        list.push_back({{ActionKind::forward, rank, i}});
      }
      if (i >= warm_up) {
        list.push_back({{ActionKind::backward_full, rank, i - warm_up}});
      }
    }
  }
  return ranks;
}

}  // namespace lehr::pipeline

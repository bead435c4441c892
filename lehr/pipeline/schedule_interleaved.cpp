// Interleaved 1F1B, and the zero-bubble schedules ZB-H1 and ZB-H2: 1F1B with deferred weight gradients.
#include <algorithm>
#include <deque>

#include "lehr/pipeline/schedule_families.h"

namespace lehr::pipeline {
namespace {

// A forward or backward of a rank: the index of the stage on the rank, and the micro-batch.
struct Step {
  int64_t local;
  int64_t microbatch;
};

// Returns a rank's forwards or backwards in order. Micro-batches pass in rounds: a round through the first stage, the
// same round through the second stage, and so on. Backwards take the stages in reverse order.
std::vector<Step> steps_in_rounds(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, bool backward) {
  const int64_t rounds = std::max<int64_t>(1, num_microbatches / num_ranks);
  std::vector<Step> steps;
  int64_t first = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    // Larger rounds come first: the warm-up is as long as the first round, and a longer round later would need a
    // backward before its forward.
    const int64_t size = num_microbatches / rounds + (round < num_microbatches % rounds ? 1 : 0);
    for (int64_t i = 0; i < stages_per_rank; ++i) {
      const int64_t local = backward ? stages_per_rank - 1 - i : i;
      for (int64_t m = first; m < first + size; ++m) {
        steps.push_back({local, m});
      }
    }
    first += size;
  }
  return steps;
}

struct Shape {
  int64_t num_ranks;
  int64_t stages_per_rank;
  int64_t num_microbatches;
  BackwardPass pass;
  int64_t warm_up;       // Forwards before the first pair of a forward and a backward.
  int64_t weight_delay;  // Number of I actions before the first W.
};

std::vector<Actions> interleaved_rank(int64_t rank, const Shape& shape) {
  const auto forwards = steps_in_rounds(shape.num_ranks, shape.stages_per_rank, shape.num_microbatches, false);
  const auto backwards = steps_in_rounds(shape.num_ranks, shape.stages_per_rank, shape.num_microbatches, true);
  const auto total = static_cast<int64_t>(forwards.size());
  const int64_t warm_up = std::min(shape.warm_up, total);
  std::vector<Actions> list;
  std::deque<Action> weights;
  const auto push_weight = [&] {
    list.push_back({weights.front()});
    weights.pop_front();
  };
  for (int64_t i = 0; i < total + warm_up; ++i) {
    if (i < total) {
      const Step& step = forwards[static_cast<size_t>(i)];
      list.push_back({{ActionKind::forward, step.local * shape.num_ranks + rank, step.microbatch}});
    }
    if (i < warm_up) {
      continue;
    }
    const Step& step = backwards[static_cast<size_t>(i - warm_up)];
    const int64_t stage = step.local * shape.num_ranks + rank;
    if (shape.pass == BackwardPass::full) {
      list.push_back({{ActionKind::backward_full, stage, step.microbatch}});
      continue;
    }
    list.push_back({{ActionKind::backward_input, stage, step.microbatch}});
    weights.push_back({ActionKind::backward_weight, stage, step.microbatch});
    if (i - warm_up >= shape.weight_delay) {
      push_weight();
    }
  }
  while (!weights.empty()) {
    push_weight();
  }
  return list;
}

}  // namespace

RankLists build_interleaved(int64_t num_ranks, int64_t stages_per_rank, int64_t num_microbatches, BackwardPass pass) {
  const int64_t rounds = std::max<int64_t>(1, num_microbatches / num_ranks);
  const int64_t first_round = (num_microbatches + rounds - 1) / rounds;
  // A whole backward takes about as long as two forwards, so its gradients arrive later.
  const int64_t per_rank = pass == BackwardPass::split ? 1 : 2;
  RankLists ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(interleaved_rank(
        rank,
        {.num_ranks = num_ranks,
         .stages_per_rank = stages_per_rank,
         .num_microbatches = num_microbatches,
         .pass = pass,
         .warm_up = (stages_per_rank - 1) * first_round + per_rank * (num_ranks - 1 - rank),
         .weight_delay = rank}));
  }
  return ranks;
}

RankLists build_zero_bubble_h(int64_t num_ranks, int64_t num_microbatches, int64_t depth) {
  RankLists ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(interleaved_rank(
        rank,
        {.num_ranks = num_ranks,
         .stages_per_rank = 1,
         .num_microbatches = num_microbatches,
         .pass = BackwardPass::split,
         .warm_up = depth * (num_ranks - 1 - rank),
         .weight_delay = depth * rank}));
  }
  return ranks;
}

}  // namespace lehr::pipeline

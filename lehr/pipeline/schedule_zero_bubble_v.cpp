// ZB-V: two stages per rank, placed as a V, with W actions where a rank would wait.
#include <algorithm>

#include "lehr/pipeline/schedule_families.h"

namespace lehr::pipeline {
namespace {

// A rank's two stages, the number of micro-batches that have passed each of them, and the list so far.
class ZeroBubbleRank {
 public:
  ZeroBubbleRank(int64_t num_ranks, int64_t rank, int64_t num_microbatches)
      : there_{.stage = rank}, back_{.stage = 2 * num_ranks - 1 - rank}, num_microbatches_(num_microbatches) {}

  struct Stage {
    int64_t stage;
    int64_t forwards = 0;
    int64_t inputs = 0;
    int64_t weights = 0;
  };
  Stage& there() { return there_; }
  Stage& back() { return back_; }

  void forward(Stage& stage) { push(ActionKind::forward, stage, stage.forwards); }
  void input(Stage& stage) { push(ActionKind::backward_input, stage, stage.inputs); }
  void weight(Stage& stage) { push(ActionKind::backward_weight, stage, stage.weights); }
  std::vector<Actions> take() { return std::move(list_); }

 private:
  void push(ActionKind kind, const Stage& stage, int64_t& count) {
    if (count < num_microbatches_) {
      list_.push_back({{kind, stage.stage, count}});
    }
    ++count;
  }

  Stage there_;
  Stage back_;
  int64_t num_microbatches_;
  std::vector<Actions> list_;
};

std::vector<Actions> zero_bubble_rank(int64_t num_ranks, int64_t rank, int64_t num_microbatches) {
  // The pattern needs 2P - 1 micro-batches to close; micro-batches beyond the real ones add no action.
  const int64_t virtual_microbatches = std::max(2 * num_ranks - 1, num_microbatches);
  ZeroBubbleRank list(num_ranks, rank, num_microbatches);
  auto& there = list.there();
  auto& back = list.back();
  // Warm-up: forwards of the first stage, then of both stages in turn, then the first backwards of the second stage.
  for (int64_t i = 0; i < 2 * (num_ranks - rank) - 1; ++i) {
    list.forward(there);
  }
  for (int64_t i = 0; i < rank; ++i) {
    list.forward(back);
    list.forward(there);
  }
  for (int64_t i = 0; i < num_ranks - rank; ++i) {
    list.forward(back);
    list.input(back);
    list.weight(back);
  }
  // Steady state: F, I and W of both stages in turn.
  while (back.forwards < there.forwards || there.forwards < virtual_microbatches) {
    if (there.forwards < virtual_microbatches) {
      list.forward(there);
    }
    list.input(there);
    list.weight(there);
    list.forward(back);
    list.input(back);
    list.weight(back);
  }
  // Drain: I first, as other ranks wait for it; the remaining W fill the idle time.
  for (int64_t i = 0; i < rank; ++i) {
    list.input(there);
    list.input(back);
  }
  for (int64_t i = 0; i < num_ranks - rank; ++i) {
    list.input(there);
    list.weight(there);
  }
  while (back.weights < back.inputs) {
    list.weight(back);
  }
  while (there.weights < there.inputs) {
    list.weight(there);
  }
  return list.take();
}

}  // namespace

RankLists build_zero_bubble_v(int64_t num_ranks, int64_t num_microbatches) {
  RankLists ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(zero_bubble_rank(num_ranks, rank, num_microbatches));
  }
  return ranks;
}

}  // namespace lehr::pipeline

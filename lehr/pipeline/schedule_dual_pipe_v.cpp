// DualPipeV: a forward and a backward of different stages share an entry and may overlap each other's communication.
#include <deque>

#include "lehr/pipeline/schedule_families.h"

namespace lehr::pipeline {
namespace {

// The list of one rank. The counts of forwards and backwards by stage give the micro-batch numbers; deferred W actions
// wait in order.
class DualPipeRank {
 public:
  DualPipeRank(int64_t num_ranks, int64_t rank) : there_{.stage = rank}, back_{.stage = 2 * num_ranks - 1 - rank} {}

  struct Stage {
    int64_t stage;
    int64_t forwards = 0;
    int64_t backwards = 0;
  };
  Stage& there() { return there_; }
  Stage& back() { return back_; }

  void forward(Stage& stage) { list_.push_back({next_forward(stage)}); }
  void backward(Stage& stage) { list_.push_back({next_backward(stage)}); }
  void pair(Stage& forward_of, Stage& backward_of) {
    const Action forward = next_forward(forward_of);
    list_.push_back({forward, next_backward(backward_of)});
  }
  void input(Stage& stage) {
    const int64_t microbatch = stage.backwards++;
    list_.push_back({{ActionKind::backward_input, stage.stage, microbatch}});
    weights_.push_back({ActionKind::backward_weight, stage.stage, microbatch});
  }
  void weight() {
    list_.push_back({weights_.front()});
    weights_.pop_front();
  }
  std::vector<Actions> take() { return std::move(list_); }

 private:
  static Action next_forward(Stage& stage) { return {ActionKind::forward, stage.stage, stage.forwards++}; }
  static Action next_backward(Stage& stage) { return {ActionKind::backward_full, stage.stage, stage.backwards++}; }

  Stage there_;
  Stage back_;
  std::deque<Action> weights_;
  std::vector<Actions> list_;
};

std::vector<Actions> dual_pipe_rank(int64_t num_ranks, int64_t rank, int64_t num_microbatches) {
  DualPipeRank list(num_ranks, rank);
  auto& there = list.there();
  auto& back = list.back();
  const int64_t to_turn = num_ranks - 1 - rank;  // ranks between this one and the turning point
  // Warm-up: forwards of the first stage, then of both stages in turn.
  for (int64_t i = 0; i < 2 * to_turn; ++i) {
    list.forward(there);
  }
  for (int64_t i = 0; i < rank + 1; ++i) {
    list.forward(there);
    list.forward(back);
  }
  // Backwards of the last half of the V begin; their W is not deferred.
  for (int64_t i = 0; i < to_turn; ++i) {
    list.input(back);
    list.weight();
    list.forward(back);
  }
  // Steady state: each forward shares an entry with a backward of the other stage.
  for (int64_t i = 0; i < num_microbatches - 2 * num_ranks + rank + 1; ++i) {
    if (i == 0 && to_turn == 0) {
      // Separate entries, so that the first backward of the pipeline does not wait for a forward.
      list.forward(there);
      list.backward(back);
    } else {
      list.pair(there, back);
    }
    list.pair(back, there);
  }
  // Drain.
  for (int64_t i = 0; i < to_turn; ++i) {
    list.backward(back);
    list.pair(back, there);
  }
  // From the middle of the drain on, W actions are deferred, because other ranks need the gradients of inputs first.
  // The switch falls between the two backwards of an iteration: before the first one on odd ranks, after it on even
  // ranks.
  bool split = false;
  for (int64_t i = 0; i < rank + 1; ++i) {
    const bool middle = i == (rank + 1) / 2;
    split = split || (middle && rank % 2 == 1);
    split ? list.input(back) : list.backward(back);
    split = split || (middle && rank % 2 == 0);
    split ? list.input(there) : list.backward(there);
  }
  for (int64_t i = 0; i < to_turn; ++i) {
    list.weight();
    list.input(there);
  }
  for (int64_t i = 0; i < rank + 1; ++i) {
    list.weight();
  }
  return list.take();
}

}  // namespace

RankLists build_dual_pipe_v(int64_t num_ranks, int64_t num_microbatches) {
  RankLists ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(dual_pipe_rank(num_ranks, rank, num_microbatches));
  }
  return ranks;
}

}  // namespace lehr::pipeline

// A step of several micro-batches in flight, whose backward is full or split into dgrad and wgrad.
#pragma once

#include <algorithm>

#include "lehr/ops/weight_gradients.h"
#include "tiny_stack.h"

namespace lehr::shard {

// One action of a schedule such as "F0 I0 B1 W0": F forward, I dgrad, B full backward, W wgrad of a micro-batch.
struct Act {
  char what;
  size_t microbatch;
};
using Acts = std::vector<Act>;

inline const Acts kZeroBubble{
    {'F', 0},
    {'F', 1},
    {'I', 0},
    {'F', 2},
    {'I', 1},
    {'W', 0},
    {'F', 3},
    {'I', 2},
    {'W', 1},
    {'I', 3},
    {'W', 2},
    {'W', 3}};
// Full and split backwards, as in schedules that split only where it helps; the last actions are wgrad.
inline const Acts kMixed{
    {'F', 0}, {'B', 0}, {'F', 1}, {'F', 2}, {'I', 1}, {'F', 3}, {'B', 2}, {'I', 3}, {'W', 3}, {'W', 1}};
inline const Acts kOneForwardOneBackward{
    {'F', 0}, {'F', 1}, {'B', 0}, {'F', 2}, {'B', 1}, {'F', 3}, {'B', 2}, {'B', 3}};

constexpr size_t kMicrobatches = 4;

// One step on a rank, of four micro-batches between one begin_step and one finish_backward. Returns the loss over all
// ranks.
inline double step_in_halves(
    mesh::DistributedContext& context,
    Stack& model,
    FullySharded& sharded,
    int64_t step,
    const Acts& acts,
    const std::function<void(const Act&)>& after = {}) {
  const int64_t mine = kRows / context.data_parallel_size();
  const int64_t rows = mine / static_cast<int64_t>(kMicrobatches);
  const Rows all = make_rows(kRows, step);
  clear_gradients(model);
  sharded.begin_step();
  sharded.set_last_microbatch(false);
  std::vector<std::shared_ptr<ops::WeightGradients>> wgrads(kMicrobatches);
  std::vector<at::Tensor> losses(kMicrobatches);
  at::Tensor total = at::zeros({}, at::kDouble);
  size_t forwards = 0, waited = 0;
  for (const Act& act : acts) {
    const size_t i = act.microbatch;
    switch (act.what) {
      case 'F': {
        wgrads[i] = std::make_shared<ops::WeightGradients>();
        const ops::WeightGradients::Scope scope(wgrads[i]);
        const Rows part = rows_of(all, context.data_parallel_rank() * mine + static_cast<int64_t>(i) * rows, rows);
        losses[i] = model.loss(part.ids, part.labels) / (4 * kRows - 1);
        total += losses[i].detach();
        if (++forwards == kMicrobatches) {
          sharded.set_last_microbatch(true);
        }
        break;
      }
      case 'I':
        wgrads[i]->backward_input({losses[i]});
        losses[i].reset();
        waited += wgrads[i]->size();
        break;
      case 'W':
        wgrads[i]->backward_weight();
        break;
      default:
        losses[i].backward();
        losses[i].reset();
    }
    if (after) {
      after(act);
    }
  }
  sharded.finish_backward();
  const bool split = std::any_of(acts.begin(), acts.end(), [](const Act& act) { return act.what == 'I'; });
  EXPECT_EQ(waited > 0, split);
  context.world().all_reduce(total);
  return total.item<double>();
}

}  // namespace lehr::shard

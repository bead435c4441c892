#include "lehr/nn/distillation.h"

#include "lehr/base/error.h"
#include "lehr/ops/cosine_distance/cosine_distance.h"

namespace lehr::nn {

LayerDistances::LayerDistances(const DistillationTargets* targets)
    : targets_(targets != nullptr && !targets->layer_outputs.empty() ? targets : nullptr) {}

void LayerDistances::add(int64_t index, const at::Tensor& hidden_states) {
  if (targets_ == nullptr) {
    return;
  }
  const auto layers = static_cast<int64_t>(targets_->layer_outputs.size());
  require(index < layers, "distillation: the model has a layer {}, but the teacher has {} layers", index, layers);
  const at::Tensor& target = targets_->layer_outputs[static_cast<size_t>(index)];
  require(
      hidden_states.sizes() == target.sizes(),
      "distillation: the hidden states of layer {} have the size {}, but the teacher's have {}",
      index,
      hidden_states.size(-1),
      target.size(-1));
  const auto rows = [](const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); };
  const at::Tensor distance = ops::cosine_distance(rows(hidden_states), rows(target))
                                  .view(hidden_states.sizes().slice(0, hidden_states.dim() - 1));
  sum_ = sum_.defined() ? sum_ + distance : distance;
}

at::Tensor LayerDistances::mean() const {
  if (!sum_.defined()) {
    return {};
  }
  const at::Tensor own = sum_ / static_cast<double>(targets_->layer_outputs.size());
  return targets_->earlier_distance.defined() ? targets_->earlier_distance + own : own;
}

}  // namespace lehr::nn

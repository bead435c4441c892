#include "lehr/nn/hidden_states_aggregator.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"

namespace lehr::nn {

HiddenStatesAggregator::HiddenStatesAggregator(HiddenStatesAggregationMode mode, at::Tensor mask)
    : mode_(mode), mask_(std::move(mask)) {
  require(
      mode == HiddenStatesAggregationMode::no || mask_.defined(),
      "hidden_states_agg_mask: required to average hidden states; pass a (batch, sequence) mask");
}

void HiddenStatesAggregator::add_hidden_states(const at::Tensor& hidden_states) {
  if (mode_ == HiddenStatesAggregationMode::no) {
    return;
  }
  require(
      mask_.sizes() == hidden_states.sizes().slice(0, 2),
      "hidden_states_agg_mask: expected shape {}x{}, found {}",
      hidden_states.size(0),
      hidden_states.size(1),
      fmt::join(mask_.sizes(), "x"));
  const auto dtype = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor mask = mask_.to(dtype).unsqueeze(-1);  // (B, T, 1)
  const at::Tensor sum = (hidden_states.to(dtype) * mask).sum(1);
  const at::Tensor weight = mask.sum(1);
  collected_.push_back((sum / weight.masked_fill(weight.eq(0), 1)).to(hidden_states.scalar_type()));  // (B, H)
}

at::Tensor HiddenStatesAggregator::pack_with_snapshot(const at::Tensor& snapshot) {
  if (mode_ == HiddenStatesAggregationMode::no) {
    return {};
  }
  if (collected_.empty()) {
    return snapshot;
  }
  at::Tensor rows = at::stack(collected_);
  collected_.clear();
  return snapshot.defined() ? at::cat({snapshot, rows}) : rows;
}

}  // namespace lehr::nn

// The definition of the gated delta rule: the recurrence, token by token, in plain ATen.
#include <cmath>
#include <vector>

#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"

namespace lehr::ops::reference {

namespace {
at::Tensor normed(const at::Tensor& x, at::ScalarType type) {
  const at::Tensor wide = x.to(type);
  return wide * (wide.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
}

// (B, T, 1, 1, 1) of 0 where a sequence begins within its row, else 1.
at::Tensor continues(const at::Tensor& cumulative_lengths, int64_t rows, int64_t tokens, const at::Tensor& like) {
  const at::Tensor borders = cumulative_lengths.to(at::kLong);
  const at::Tensor positions = at::arange(rows * tokens, borders.options());
  const at::Tensor begins = borders.index({at::searchsorted(borders, positions)}) == positions;
  const at::Tensor kept = begins.logical_not().logical_or(positions % tokens == 0).to(like.scalar_type());
  return kept.view({rows, tokens, 1, 1, 1});
}
}  // namespace

GatedDelta gated_delta_rule(const GatedDeltaInputs& in) {
  const auto type = in.decay.scalar_type();
  const int64_t rows = in.query.size(0), tokens = in.query.size(1), size = in.query.size(3);
  const int64_t heads = in.value.size(2), group = heads / in.query.size(2);
  const bool corrects = in.update == StateUpdate::correct;
  const at::Tensor of_query =
      corrects ? normed(in.query, type) / std::sqrt(static_cast<double>(size)) : in.query.to(type);
  const at::Tensor of_key = corrects ? normed(in.key, type) : in.key.to(type);
  const at::Tensor query = of_query.repeat_interleave(group, 2), key = of_key.repeat_interleave(group, 2);
  const at::Tensor value = in.value.to(type), beta = in.beta.unsqueeze(-1);
  const at::Tensor decay = in.decay.exp().unsqueeze(-1).unsqueeze(-1);
  const at::Tensor kept =
      in.cumulative_lengths.defined() ? continues(in.cumulative_lengths, rows, tokens, decay) : at::Tensor();
  at::Tensor state =
      in.initial_state.defined() ? in.initial_state : at::zeros({rows, heads, size, value.size(3)}, decay.options());
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < tokens; ++t) {
    state = state * decay.select(1, t);
    if (kept.defined()) {
      state = state * kept.select(1, t);
    }
    const at::Tensor k = key.select(1, t).unsqueeze(-1), v = value.select(1, t);  // (B, Hv, K, 1), (B, Hv, V)
    const at::Tensor wanted = corrects ? v - (state * k).sum(-2) : v;
    state = state + k * (wanted * beta.select(1, t)).unsqueeze(-2);
    outputs.push_back((state * query.select(1, t).unsqueeze(-1)).sum(-2));
  }
  return {.output = at::stack(outputs, 1).to(in.query.scalar_type()), .final_state = state};
}

}  // namespace lehr::ops::reference

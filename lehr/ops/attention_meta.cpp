#include "lehr/ops/attention_meta.h"

#include <algorithm>

#include "lehr/base/operation_meter.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Flash : torch::autograd::Function<Flash> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const std::optional<at::Tensor>& bias,
      double flops) {
    const at::Tensor output = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor log_sum = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(wide));
    ctx->save_for_backward({q, k, v, output, log_sum, bias.value_or(at::Tensor())});
    ctx->saved_data["flops"] = flops;
    report_attention(flops);
    return output.transpose(1, 2);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& /*gradients*/) {
    const auto saved = ctx->get_saved_variables();
    report_attention(2 * ctx->saved_data["flops"].toDouble());
    return {at::empty_like(saved[0]), at::empty_like(saved[1]), at::empty_like(saved[2]), {}, {}};
  }
};
}  // namespace

at::Tensor flash_attention_on_meta(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias, bool causal) {
  const double pairs = static_cast<double>(q.size(0) * q.size(2) * q.size(1)) * static_cast<double>(k.size(1));
  const double flops = (causal ? 1 : 2) * pairs * static_cast<double>(q.size(3) + v.size(3));
  std::optional<at::Tensor> scores_bias = bias;
  if (bias && bias->scalar_type() == at::kBool) {
    scores_bias = bias->to(q.scalar_type());  // ATen converts the mask the same way
  }
  return Flash::apply(q, k, v, scores_bias, flops);
}

double causal_attention_flops(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::optional<int64_t> window) {
  const int64_t last = k.size(1), first = last - q.size(1) + 1;  // visible to the last and first query
  const int64_t seen = std::min(window.value_or(last), last);
  const int64_t most = std::clamp(seen, first - 1, last);
  const double pairs = static_cast<double>((first + most) * (most - first + 1)) / 2 +
                       static_cast<double>(last - most) * static_cast<double>(seen);
  return 2 * pairs * static_cast<double>(q.size(0) * q.size(2) * (q.size(3) + v.size(3)));
}

}  // namespace lehr::ops

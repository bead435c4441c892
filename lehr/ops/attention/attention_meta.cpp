#include "lehr/ops/attention/attention_meta.h"

#include <algorithm>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Flash : AutogradFunction<Flash> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const std::optional<at::Tensor>& bias,
      double flops) {
    const at::Tensor output = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(wide));
    ctx->save_for_backward({q, k, v, output, lse, bias.value_or(at::Tensor())});
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

// Returns the pairs of a query and a key that it sees in a sequence.
double visible_pairs(int64_t length, std::optional<int64_t> window) {
  const int64_t seen = std::min(window.value_or(length), length);
  return static_cast<double>(seen * (seen + 1)) / 2 + static_cast<double>((length - seen) * seen);
}

// Returns the lengths on the host. All layers of a model pass the same tensor, which is created once per batch, so the
// host waits once per batch.
const at::Tensor& on_host(const at::Tensor& lengths) {
  if (lengths.is_cpu()) {
    return lengths;
  }
  // A cache: each rank has its own batch.
  static thread_local c10::weak_intrusive_ptr<c10::TensorImpl> t_known(at::Tensor().getIntrusivePtr());  // no scope
  static thread_local at::Tensor t_copy;
  if (t_known.expired() || t_known._unsafe_get_target() != lengths.unsafeGetTensorImpl()) {
    t_copy = lengths.cpu();
    t_known = c10::weak_intrusive_ptr<c10::TensorImpl>(lengths.getIntrusivePtr());
  }
  return t_copy;
}
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

void report_sequences(
    const at::Tensor& q, const at::Tensor& v, const Sequences& sequences, std::optional<int64_t> window, double times) {
  if (!counts_reports()) {
    return;
  }
  double pairs = 0;
  const int64_t rows = q.size(0) / sequences.row_length;
  if (sequences.cumulative_lengths.is_meta() || sequences.cumulative_lengths.numel() == rows + 1) {
    pairs = static_cast<double>(rows) * visible_pairs(sequences.row_length, window);
  } else {
    const at::Tensor& lengths = on_host(sequences.cumulative_lengths);
    const auto* border = lengths.const_data_ptr<int32_t>();
    for (int64_t i = 0; i + 1 < lengths.numel(); ++i) {
      pairs += visible_pairs(border[i + 1] - border[i], window);
    }
  }
  report_attention(times * 2 * pairs * static_cast<double>(q.size(1) * (q.size(2) + v.size(2))));
}

}  // namespace lehr::ops

// Language-model loss: its chunks of tokens, and the autograd function.
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>

#include <limits>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/chunked_loss.h"
#include "lehr/ops/device.h"
#include "lehr/ops/label_rows.h"
#include "lehr/ops/linear_cross_entropy/kernels.h"
#include "lehr/ops/logit_softcap.h"

namespace lehr::ops {

namespace cpu {
namespace {
// Returns the loss and gradient of a row without a valid label: 0 for an ignored one (-1), else NaN.
template <class T>
T without_label(int64_t label) {
  const float value = label == -1 ? 0 : std::numeric_limits<float>::quiet_NaN();
  if constexpr (std::is_same_v<T, Bf16>) {
    return {.bits = c10::BFloat16(value).x};
  } else {
    return value;
  }
}

void cross_entropy_of_rows(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale) {
  const int64_t size = logits.size(1);
  report_pointwise({logits, gradient ? logits : at::Tensor(), losses});
  const int64_t* label = elements<int64_t>(labels);
  run<CrossEntropyKernels>(logits, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    T* x = elements<T>(logits);
    Wide<T>* loss = elements<Wide<T>>(losses);
    const Wide<T>* scale = elements<Wide<T>>(row_scale);
    run_kernel(logits, 0, logits.size(0), grain_for(size), [&](int64_t first, int64_t last) {
      const Wide<T> one = 1;
      for (int64_t row = first; row < last; ++row) {
        T* const logits_of_row = x + row * size;
        if (label[row] < 0 || label[row] >= size) {
          loss[row] = without_label<Wide<T>>(label[row]);
          if (gradient) {
            std::fill(logits_of_row, logits_of_row + size, without_label<T>(label[row]));
          }
          continue;
        }
        const Wide<T>* row_gradient = gradient ? (scale ? scale + row : &one) : nullptr;
        loss[row] = kernels.row(logits_of_row, size, label[row], row_gradient);
      }
    });
  });
}
}  // namespace
}  // namespace cpu

namespace cuda {
namespace {
using cpu::elements;

void cross_entropy_of_rows(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale) {
  check_devices("linear_cross_entropy", {logits, labels, losses, row_scale});
  report_pointwise({logits, gradient ? logits : at::Tensor(), losses});
  run<CrossEntropyLaunches>("linear_cross_entropy", logits, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const CrossEntropyCall<T> call{
        .logits = elements<T>(logits),
        .labels = elements<int64_t>(labels),
        .losses = elements<float>(losses),
        .row_scale = elements<float>(row_scale),
        .size = logits.size(1),
        .gradient = gradient};
    return kernels.rows(call, logits.size(0));
  });
}
}  // namespace
}  // namespace cuda

void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale) {
  if (supports(logits)) {
    return cuda::supports(logits) ? cuda::cross_entropy_of_rows(logits, labels, losses, gradient, row_scale)
                                  : cpu::cross_entropy_of_rows(logits, labels, losses, gradient, row_scale);
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor ignored = labels.eq(-1);
  const at::Tensor bad = labels.lt(-1).logical_or(labels.ge(logits.size(1)));
  const at::Tensor label = labels.clamp(0, logits.size(1) - 1).unsqueeze(1);
  const at::Tensor log_p = at::log_softmax(logits, -1, losses.scalar_type());
  losses.copy_(log_p.gather(1, label).squeeze(1).neg().masked_fill(ignored, 0).masked_fill(bad, nan));
  if (gradient) {
    at::Tensor p = log_p.exp();
    p.scatter_(1, label, p.gather(1, label) - 1);  // dL/dlogits = softmax - one_hot(label)
    p = row_scale.defined() ? p * row_scale.unsqueeze(1) : p;
    logits.copy_(p.masked_fill(ignored.unsqueeze(1), 0).masked_fill(bad.unsqueeze(1), nan));
  }
}

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Result {
  at::Tensor losses;   // (counted tokens)
  HeadGradients unit;  // for an incoming gradient of row_scale, or of 1
};

Result over_rows(
    const LabelRows& rows,
    const at::Tensor& weight,
    std::optional<double> cap,
    cpu::GradMask wanted,
    const at::Tensor& row_scale = {}) {
  const int64_t count = rows.hidden.size(0);
  const auto type = cpu::wide_type(rows.hidden.scalar_type());
  const at::Tensor losses = at::empty({count}, rows.hidden.options().dtype(type));
  const int64_t bytes = (cap ? 2 : 1) * weight.element_size();
  const int64_t chunk = chunk_rows(count, weight.size(0), bytes, weight.is_cuda(), kLogitsBytes);
  const ChunkLoss loss = [&](const LogitsChunk& part) {
    const at::Tensor slope = softcap_(part.logits, cap, part.gradient);
    cross_entropy_(part.logits, part.part_of(rows.labels), part.part_of(losses), part.gradient, part.row_scale);
    if (slope.defined()) {
      part.logits.mul_(slope);
    }
  };
  return {.losses = losses, .unit = over_chunks(rows.hidden, weight, chunk, wanted, loss, row_scale)};
}

struct LinearCrossEntropyFunction : AutogradFunction<LinearCrossEntropyFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& labels,
      int64_t ignore_index,
      std::optional<double> cap,
      bool hidden_wanted,
      bool weight_wanted) {
    const LabelRows rows = loss_rows(hidden, labels, weight.size(0), ignore_index);
    const Result result = over_rows(rows, weight, cap, {.x = hidden_wanted, .weight = weight_wanted});
    ctx->save_for_backward({hidden, weight, cuda::on_gpu(labels) ? rows.labels : labels});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["softcap"] = saved_softcap(cap);
    save_unit_gradients(ctx, result.unit);
    return spread(result.losses, rows.index, labels.size(0));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::loss, "lehr::linear_cross_entropy_backward");
    refuse_double_backward("linear_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const LabelRows rows = cuda::on_gpu(saved[2])
                               ? LabelRows{saved[0], saved[2], {}}
                               : rows_that_count(saved[0], saved[2], ctx->saved_data["ignore_index"].toInt());
    const HeadGradients gradients =
        scaled_unit_gradients(ctx, grads[0], rows.index, [&](cpu::GradMask missing, const at::Tensor& row_scale) {
          const auto cap = softcap_of(ctx->saved_data["softcap"].toDouble());
          return over_rows(rows, saved[1], cap, missing, row_scale).unit;
        });
    return {gradients.hidden, gradients.weight, {}, {}, {}, {}, {}};
  }
};
}  // namespace

at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    int64_t ignore_index,
    std::optional<double> softcap) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "linear_cross_entropy",
         .inputs = {{"hidden", hidden}, {"weight", weight}, {"labels", labels}},
         .shape = {hidden.size(0)},
         .dtype = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat});
  }
  const OperatorScope scope(OperatorKind::loss, "lehr::linear_cross_entropy");
  require(
      hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) && labels.dim() == 1 &&
          labels.size(0) == hidden.size(0),
      "linear_cross_entropy: expected hidden (N, H), weight (V, H) and labels (N), found {}, {} and {}",
      shape_of(hidden),
      shape_of(weight),
      shape_of(labels));
  require(
      hidden.scalar_type() == weight.scalar_type() && hidden.is_floating_point() && labels.scalar_type() == at::kLong,
      "linear_cross_entropy: expected hidden and weight of one floating type and int64 labels, found {}, {} and {}",
      c10::toString(hidden.scalar_type()),
      c10::toString(weight.scalar_type()),
      c10::toString(labels.scalar_type()));
  check_softcap("linear_cross_entropy", softcap);
  if (hidden.is_meta() && !runs_on_meta()) {
    return reference::linear_cross_entropy(hidden, weight, labels, ignore_index, softcap);
  }
  if (!cuda::on_gpu(labels)) {
    check_labels(labels, weight.size(0), ignore_index);
  }
  const at::Tensor h = hidden.contiguous();
  const at::Tensor w = weight.contiguous();
  const at::Tensor l = labels.contiguous();
  if (will_differentiate(hidden, weight)) {
    return LinearCrossEntropyFunction::apply(
        h, w, l, ignore_index, softcap, hidden.requires_grad(), weight.requires_grad());
  }
  const LabelRows rows = loss_rows(h, l, w.size(0), ignore_index);
  return spread(over_rows(rows, w, softcap, {.x = false, .weight = false}).losses, rows.index, labels.size(0));
}

}  // namespace lehr::ops

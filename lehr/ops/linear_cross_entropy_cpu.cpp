// Cross-entropy loss and its gradient for a chunk of logits, on the CPU.
#include "lehr/base/operation_meter.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops::cpu {

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
}  // namespace

void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale) {
  const int64_t size = logits.size(1);
  report_pointwise({logits, gradient ? logits : at::Tensor(), losses});
  const int64_t* label = elements<int64_t>(labels);
  with_element_type(logits.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
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
        loss[row] = kernel.cross_entropy_row(logits_of_row, size, label[row], row_gradient);
      }
    });
  });
}

}  // namespace lehr::ops::cpu

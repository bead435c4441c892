// The loss and its gradient on chunks of logits, on the CPU.
#include "lehr/base/operation_meter.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops::cpu {

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
        const Wide<T>* row_gradient = gradient ? (scale ? scale + row : &one) : nullptr;
        loss[row] = kernel.cross_entropy_row(x + row * size, size, label[row], row_gradient);
      }
    });
  });
}

}  // namespace lehr::ops::cpu

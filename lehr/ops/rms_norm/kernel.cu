// RMSNorm on a GPU.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/rms_norm/bodies.h"
#include "lehr/ops/rms_norm/kernels.h"

namespace lehr::ops::cuda {

namespace {
template <class T>
Status rms_norm_forward(const RmsNormForward<T>& call, int64_t rows) {
  return Launch::groups(RmsNormForwardRow<T>{call}, rows, row_threads<T>(call.size));
}

template <class T>
Status rms_norm_backward(const RmsNormBackward<T>& call, const WeightGradient<T>& dweight, int64_t rows) {
  const RmsNormBackwardRows<T> body{call, dweight.parts, rows, dweight.count};
  const Status status = Launch::groups(body, dweight.count, row_threads<T>(call.size));
  return status != nullptr ? status : sum_parts(dweight, call.size);
}

template <class T>
constexpr RmsNormLaunches<T> kRmsNorm = {.forward = rms_norm_forward<T>, .backward = rms_norm_backward<T>};
const Registered kRmsNormEntries(kRmsNorm<float>, kRmsNorm<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda

#include "lehr/optim/adamw_cpu.h"

#include <cmath>

#include "lehr/base/parallel.h"
#include "lehr/base/pieces.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"

namespace lehr::optim {

namespace {
using ops::Bf16;
using ops::cpu::elements;

constexpr int64_t kPiece = 1 << 14;  // elements

template <class T>
ops::AdamWCall<T> call_for(const AdamWTensors& t, const AdamWNumbers& n) {
  return {
      .value = elements<T>(t.value),
      .grad = elements<T>(t.grad),
      .exp_avg = elements<T>(t.exp_avg),
      .exp_avg_sq = elements<T>(t.exp_avg_sq),
      .grad_divisor = n.grad_divisor,
      .constants = constants_of(n),
      .negative_step_size = static_cast<float>(-(n.lr / (1 - std::pow(n.beta1, t.step)))),
      .root_divisor = static_cast<float>(std::sqrt(1 - std::pow(n.beta2, t.step)))};
}

template <class T>
void step_on(const std::vector<AdamWTensors>& tensors, const AdamWNumbers& numbers) {
  std::vector<ops::AdamWCall<T>> calls;
  std::vector<int64_t> sizes;
  for (const AdamWTensors& t : tensors) {
    calls.push_back(call_for<T>(t, numbers));
    sizes.push_back(t.value.numel());
  }
  const std::vector<Piece> pieces = pieces_of(sizes, kPiece);
  const auto& kernels = ops::cpu_kernels<ops::AdamWKernels<T>>();
  parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      kernels.adamw(calls[pieces[i].index], pieces[i].first, pieces[i].last);
    }
  });
}
}  // namespace

ops::AdamWConstants constants_of(const AdamWNumbers& n) {
  const auto lerp = static_cast<float>(1 - n.beta1);
  const bool from_grad = !(std::abs(lerp) < 0.5F);
  return {
      .decay = static_cast<float>(1 - n.lr * n.weight_decay),
      .lerp = from_grad ? lerp - 1 : lerp,
      .lerp_from_grad = from_grad,
      .beta2 = static_cast<float>(n.beta2),
      .one_minus_beta2 = static_cast<float>(1 - n.beta2),
      .eps = static_cast<float>(n.eps)};
}

void mark_written(const std::vector<AdamWTensors>& tensors) {
  for (const AdamWTensors& t : tensors) {
    for (const at::Tensor& written : {t.value, t.exp_avg, t.exp_avg_sq}) {
      written.unsafeGetTensorImpl()->bump_version();
    }
  }
}

bool supports_adamw_on_cpu(const at::Tensor& value) {
  return value.is_cpu() && !ops::cuda::on_gpu(value) &&
         (value.scalar_type() == at::kFloat || value.scalar_type() == at::kBFloat16);
}

void adamw_on_cpu_(const std::vector<AdamWTensors>& tensors, const AdamWNumbers& numbers) {
  const OperatorScope scope(OperatorKind::optimizer, "lehr::adamw");  // the optimizer step reports the bytes
  if (tensors.front().value.scalar_type() == at::kFloat) {
    step_on<float>(tensors, numbers);
  } else {
    step_on<Bf16>(tensors, numbers);
  }
  mark_written(tensors);
}

}  // namespace lehr::optim

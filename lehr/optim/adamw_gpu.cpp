#include "lehr/optim/adamw_gpu.h"

#include <ATen/ops/pow.h>

#include "lehr/meter/operator_profile.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"

namespace lehr::optim {

namespace {
using ops::cpu::elements;

// The numbers of a step that depend on the parameters' step counts: (parameters) float32 each, on their device.
struct StepSizes {
  at::Tensor negative_step_size, root_divisor;

  StepSizes(const AdamWNumbers& n, const at::Tensor& steps) {
    const at::Tensor taken = steps.to(at::kDouble);
    const auto correction = [&](double beta) { return 1 - at::pow(beta, taken); };
    negative_step_size = (-n.lr / correction(n.beta1)).to(at::kFloat);
    root_divisor = correction(n.beta2).sqrt().to(at::kFloat);
  }
};

template <class T>
ops::cuda::Status launch_all(
    const std::vector<AdamWTensors>& tensors,
    ops::cuda::AdamWList<T> list,
    const ops::cuda::AdamWLaunches<T>& kernels) {
  ops::cuda::Status status = nullptr;
  const auto launch = [&] {
    if (list.tensors > 0 && status == nullptr) {
      status = kernels.adamw(list);
    }
    list.tensors = 0;
    list.pieces = 0;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdamWTensors& t = tensors[i];
    const int64_t count = t.value.numel();
    if (count == 0) {
      continue;
    }
    list.of[list.tensors++] = {
        .value = elements<T>(t.value),
        .grad = elements<T>(t.grad),
        .exp_avg = elements<T>(t.exp_avg),
        .exp_avg_sq = elements<T>(t.exp_avg_sq),
        .count = count,
        .first_piece = list.pieces,
        .number = static_cast<int64_t>(i)};
    list.pieces += (count + ops::cuda::kAdamWPiece - 1) / ops::cuda::kAdamWPiece;
    if (list.tensors == ops::cuda::AdamWList<T>::kMost) {
      launch();
    }
  }
  launch();
  return status;
}
}  // namespace

bool supports_adamw_on_gpu(const at::Tensor& value) {
  return ops::cuda::supports(value);
}

void adamw_on_gpu_(
    const std::vector<AdamWTensors>& tensors, const AdamWNumbers& numbers, const AdamWOnDevice& on_device) {
  const OperatorScope scope(OperatorKind::optimizer, "lehr::adamw");  // the optimizer step reports the bytes
  invariant(numbers.grad_divisor == 1, "adamw_on_gpu_ takes the divisor of gradients on the device");
  const StepSizes sizes(numbers, on_device.steps);
  at::Tensor found_inf;
  if (on_device.found_inf.defined()) {
    found_inf = on_device.found_inf.detach().to(tensors.front().value.device(), at::kFloat);
  }
  const auto pointer = [](const at::Tensor& x) { return x.defined() ? elements<float>(x) : nullptr; };
  ops::cuda::run<ops::cuda::AdamWLaunches>("adamw", tensors.front().value, [&](auto element, const auto& kernels) {
    ops::cuda::AdamWList<decltype(element)> list = {};
    list.constants = constants_of(numbers);
    list.negative_step_size = pointer(sizes.negative_step_size);
    list.root_divisor = pointer(sizes.root_divisor);
    list.grad_divisor = pointer(on_device.grad_divisor);
    list.found_inf = pointer(found_inf);
    return launch_all(tensors, list, kernels);
  });
  mark_written(tensors);
}

}  // namespace lehr::optim

// AdamW's step on a GPU: one launch for up to 64 parameters.
#pragma once

#include "lehr/optim/adamw_cpu.h"

namespace lehr::optim {

/// Numbers of a step that are tensors, so that the host does not wait for them.
struct AdamWOnDevice {
  at::Tensor steps;         ///< (parameters) float32 on the parameters' device: steps taken, including this one.
  at::Tensor grad_divisor;  ///< float32 scalar on the device; undefined for 1.
  at::Tensor found_inf;     ///< If it is not 0, nothing is written; undefined for 0.
};

/// Returns whether adamw_on_gpu_ supports this parameter: float32 or bfloat16 on a GPU for which there are kernels.
bool supports_adamw_on_gpu(const at::Tensor& value);

/// Does a step of torch.optim.AdamW in float32. It differs from adamw_on_cpu_ by the last bits of roots and quotients
/// (2 units of the last place each). Steps and the divisor of gradients are those of `on_device`: `step` of the tensors
/// is not read, and a `grad_divisor` of the numbers other than 1 is a bug. Gradients are not changed.
void adamw_on_gpu_(
    const std::vector<AdamWTensors>& tensors, const AdamWNumbers& numbers, const AdamWOnDevice& on_device);

}  // namespace lehr::optim

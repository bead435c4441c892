// Execution of a model on meta tensors: shapes and saved tensors without data or memory.
//
// ATen's operators support meta tensors; this file adds shapes for the few that lack them in LibTorch. While an OnMeta
// is alive, Lehr's own operators take their CPU code path, with the same saved tensors, results and temporary buffers,
// and skip the kernels.
#pragma once

#include "lehr/base/torch.h"

namespace lehr {

/// Scope in which meta operators of this thread simulate a run. Data-dependent quantities are assumed to be even or at
/// their worst case: see docs/ops.md, On meta.
class OnMeta {
 public:
  OnMeta();
  ~OnMeta();
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;
};

/// True if this thread has an OnMeta and no watch (meter/operator_watch.h), which follows ATen's operators.
bool runs_on_meta();

/// True if `tensor` is a meta tensor of a simulated run.
inline bool runs_on_meta(const at::Tensor& tensor) {
  return tensor.is_meta() && runs_on_meta();
}

}  // namespace lehr

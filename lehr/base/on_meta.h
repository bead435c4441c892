// Running a model on meta tensors: shapes, and what autograd keeps, without numbers and without memory.
//
// ATen's operators do so by themselves; LibTorch has no shapes for some of them, which are added here. Lehr's own
// operators take, while an OnMeta lives, the path that they take on the CPU, with the same saved tensors, results and
// temporary buffers, and leave out the kernels.
#pragma once

#include "lehr/base/torch.h"

namespace lehr {

/// While one lives, what its thread runs on meta stands for a run. What depends on data is taken as even or at its
/// worst: see docs/ops.md, On meta.
class OnMeta {
 public:
  OnMeta();
  ~OnMeta();
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;
};

/// Whether this thread has one, and no watch (base/operator_watch.h), which follows ATen's operators.
bool runs_on_meta();

/// Whether `tensor` stands for one with memory.
inline bool runs_on_meta(const at::Tensor& tensor) {
  return tensor.is_meta() && runs_on_meta();
}

}  // namespace lehr

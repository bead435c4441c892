// Running operators on the CPU: the element type, the kernels, the threads.
//
// All tensors are contiguous CPU tensors of one type that `supports` accepts, or meta tensors in their place
// (meter/on_meta.h): then results are allocated and nothing is computed.
#pragma once

#include <algorithm>

#include "lehr/base/parallel.h"
#include "lehr/base/torch.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops::cpu {

/// Returns whether there are kernels for this tensor: on the CPU or running on meta, float32, float64 or bfloat16.
inline bool supports(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (tensor.is_cpu() || runs_on_meta(tensor)) &&
         (type == at::kFloat || type == at::kDouble || type == at::kBFloat16);
}

/// The gradients that a backward pass computes; the others are returned undefined.
struct GradMask {
  bool x = true;
  bool weight = true;
};

/// Returns the type in which elements of `type` are computed: float64 for float64, else float32.
inline at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// Calls body(T{}), where T is the kernels' element type for `type`.
template <class Body>
void with_element_type(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kFloat:
      return body(float{});
    case at::kDouble:
      return body(double{});
    case at::kBFloat16:
      return body(Bf16{});
    default:
      TORCH_INTERNAL_ASSERT(false, "no CPU kernels for ", type);
  }
}

/// Calls body(T{}, an operator's kernels for T) with the element type of a tensor that `supports` accepts.
template <template <class> class Kernels, class Body>
void run(const at::Tensor& like, const Body& body) {
  with_element_type(
      like.scalar_type(), [&](auto element) { body(element, cpu_kernels<Kernels<decltype(element)>>()); });
}

/// Returns a pointer to the elements of a tensor; null if it has none: undefined, or on the meta device.
template <class T>
T* elements(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

/// Runs a kernel's loop by parallel_for, unless `like` is a meta tensor.
template <class Body>
void run_kernel(const at::Tensor& like, int64_t begin, int64_t end, int64_t grain, const Body& body) {
  if (!like.is_meta()) {
    parallel_for(begin, end, grain, body);
  }
}

/// Returns the minimum number of items per chunk, so that a chunk is about ten microseconds of work.
inline int64_t grain_for(int64_t elements_an_item) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_an_item));
}

}  // namespace lehr::ops::cpu

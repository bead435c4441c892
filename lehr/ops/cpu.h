// Fused CPU operators on tensors, forward and backward separately, which the autograd functions call.
//
// All tensors are contiguous CPU tensors of one type that `supports` accepts, or meta tensors in their place
// (base/on_meta.h): then results are allocated and nothing is computed. cuda.h has functions with the same signatures,
// and fast.h chooses between the two.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "lehr/base/on_meta.h"
#include "lehr/base/parallel.h"
#include "lehr/base/torch.h"
#include "lehr/ops/attention.h"
#include "lehr/ops/kernels/table.h"
#include "lehr/ops/rms_norm.h"
#include "lehr/ops/rotary.h"

namespace lehr::ops::cpu {

/// Whether there are kernels for this tensor: on the CPU or running on meta, float32, float64 or bfloat16.
bool supports(const at::Tensor& tensor);

/// The gradients that a backward pass computes; the others are returned undefined.
struct GradMask {
  bool x = true;
  bool weight = true;
};

/// Fused residual addition of a norm: `branch` is added to x before the norm, and the sum is written to `sum`. Both
/// have x's shape, or are undefined for no addition.
struct Added {
  at::Tensor branch = {};
  at::Tensor sum = {};
};

/// Returns y and, if `keep`, the inverse RMS of each row for backward.
std::tuple<at::Tensor, at::Tensor> rms_norm_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, bool keep, const Added& added = {});
/// Returns the gradients of x and weight. x is the tensor that was normalized, after a fused addition. Its gradient
/// includes dsum, if that is defined.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    GradMask wanted,
    const at::Tensor& dsum = {});

/// cos and sin in the layout of the kernels: (B*T, R), or (T, R) if all sequences share them.
struct CosSin {
  at::Tensor cos;
  at::Tensor sin;
  bool interleaved;
};
CosSin angles_for(const at::Tensor& cos, const at::Tensor& sin, at::ScalarType type, RotaryStyle style);

/// Rotates x (B, T, H, D). With `backward`, rotates by the negative angles, which is the transposed map.
at::Tensor rotary(const at::Tensor& x, const CosSin& angles, bool backward);

std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const CosSin& angles, bool keep);
std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const CosSin& angles,
    GradMask wanted);

/// Writes -log softmax(logits)[labels] to losses (N). If `gradient`, overwrites logits (N, V) by softmax(logits) -
/// one_hot(labels), with row n multiplied by row_scale[n] if row_scale is defined. losses and row_scale are in the wide
/// type. Loss and gradient are zero for the label -1, and NaN for other labels out of range.
void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale = {});

/// Returns the rows of tokens (N, H), copied once per choice, in sorted order (N*k, H), for a TokenPermutation's
/// `order`.
at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order);
/// Returns the sum of each token's rows of `sorted`, multiplied by weights (N, k) if defined, in the order of the
/// token's choices, for the `inverse` of a TokenPermutation with k choices per token.
at::Tensor sum_copies(const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices);
/// Returns the gradients of sum_copies with respect to sorted and weights.
std::tuple<at::Tensor, at::Tensor> sum_copies_backward(
    const at::Tensor& dout,
    const at::Tensor& sorted,
    const at::Tensor& weights,
    const at::Tensor& inverse,
    GradMask wanted);

/// Whether attention_forward takes this call: causal order, documents and padding that form sequences
/// (attention_sequences.h), float32 or bfloat16, and not so few queries that tiles would be mostly empty. All options
/// are supported.
bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);
/// (batch, keys) int32, where in its row the sequence at each position begins, for cumulative lengths of the rows;
/// undefined if these are.
at::Tensor first_keys_of(const at::Tensor& cumulative_lengths, int64_t batch, int64_t keys);
/// Arguments of a call of attention that all queries share.
struct AttentionPlan {
  at::Tensor first_keys;  ///< Of first_keys_of; undefined where each row is one sequence.
  at::Tensor sinks;       ///< (Hq) float32; undefined for none.
  double scale = 1;
  double softcap = 0;  ///< 0 for none.
  int64_t window = std::numeric_limits<int64_t>::max();
};
/// Returns the output and, if `keep`, the log-sum-exp of each query (B, Hq, T) for backward.
std::tuple<at::Tensor, at::Tensor> attention_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionPlan& plan, bool keep);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& log_sum,
    const AttentionPlan& plan);

/// Returns the type in which `type` is computed: float64 for float64, else float32.
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

/// Returns the minimum number of items per thread, such that a thread has about ten microseconds of work.
inline int64_t grain_for(int64_t elements_an_item) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_an_item));
}

}  // namespace lehr::ops::cpu

// The fast CPU forms of the operators on tensors, forward and backward apart: what the autograd functions call.
//
// All tensors are contiguous CPU tensors of one type that `supports` names, or stand for such on meta (base/on_meta.h):
// everything is allocated and nothing computed then. cuda.h has functions of the same shape,
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

/// Whether there are kernels for tensors like this one: on the CPU or running on meta, float32, float64 or bfloat16.
bool supports(const at::Tensor& tensor);

/// Which gradients of x and of the weight a backward pass shall compute; the others come back undefined.
struct Wanted {
  bool x = true;
  bool weight = true;
};

/// What a norm adds to x before it, and where their sum goes, both of x's shape; undefined for nothing.
struct Added {
  at::Tensor branch = {};
  at::Tensor sum = {};
};

/// Returns y and, if `keep`, the rows' inverse_rms for the backward pass.
std::tuple<at::Tensor, at::Tensor> rms_norm_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, bool keep, const Added& added = {});
/// x is what was normalized. Its gradient includes dsum, if that is defined.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    Wanted wanted,
    const at::Tensor& dsum = {});

/// cos and sin as kernels read them: (rows, R), each (1, T, R) or (T, R) kept as T rows.
struct Angles {
  at::Tensor cos;
  at::Tensor sin;
  bool interleaved;
};
Angles angles_for(const at::Tensor& cos, const at::Tensor& sin, at::ScalarType type, RotaryStyle style);

/// x is (B, T, H, D). Backward applies the transposed map.
at::Tensor rotary(const at::Tensor& x, const Angles& angles, bool backward);

std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const Angles& angles, bool keep);
std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const Angles& angles,
    Wanted wanted);

at::Tensor silu_mul_forward(const at::Tensor& gate, const at::Tensor& up);
std::tuple<at::Tensor, at::Tensor> silu_mul_backward(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, bool want_gate, bool want_up);

/// Writes -log softmax(logits)[labels] to losses (N); if `gradient`, turns logits (N, V) into softmax(logits) -
/// one_hot, row n times row_scale[n] where row_scale is defined. losses and row_scale are in the wide type. A row with
/// the label -1 gives zeros, with another one out of range NaN.
void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale = {});

/// Rows of tokens (N, H) in sorted order, (N*k, H), for `order` of a TokenPermutation.
at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order);
/// The sums of each token's rows of `sorted`, times weights (N, k) unless they are undefined, each in the order of the
/// token's choices; `inverse` of a TokenPermutation with k choices a token.
at::Tensor sum_copies(const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices);
/// Gradients of sum_copies for sorted and weights.
std::tuple<at::Tensor, at::Tensor> sum_copies_backward(
    const at::Tensor& dout,
    const at::Tensor& sorted,
    const at::Tensor& weights,
    const at::Tensor& inverse,
    Wanted wanted);

/// Whether attention_forward takes this call: causal order and documents only, float32 or bfloat16, and not so few
/// queries that tiles would be mostly empty. It takes all options.
bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);
/// (batch, keys) int32, where the document at each position begins; undefined without ids, nothing if a document comes
/// in several pieces.
std::optional<at::Tensor> first_keys_of(const at::Tensor& document_ids, int64_t batch, int64_t keys);
/// What is the same for all queries of a call of attention.
struct AttentionPlan {
  at::Tensor first_keys;  ///< Of first_keys_of; undefined without documents.
  at::Tensor sinks;       ///< (Hq) float32; undefined for none.
  double scale = 1;
  double softcap = 0;  ///< 0 for none.
  int64_t window = std::numeric_limits<int64_t>::max();
};
/// Returns the output and, if `keep`, the log-sums (B, Hq, T) for the backward pass.
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

/// The type in which T is computed: float64 for float64, else float32.
inline at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// Calls body(T{}) with the kernels' element type for `type`.
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

/// The elements of a tensor, null if it is undefined.
template <class T>
T* elements(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

/// parallel_for over the work of a kernel on tensors like `like`; on meta there is none.
template <class Body>
void run_kernel(const at::Tensor& like, int64_t begin, int64_t end, int64_t grain, const Body& body) {
  if (!like.is_meta()) {
    parallel_for(begin, end, grain, body);
  }
}

/// The least number of items for a thread, so that it has some ten microseconds of work.
inline int64_t grain_for(int64_t elements_an_item) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_an_item));
}

}  // namespace lehr::ops::cpu

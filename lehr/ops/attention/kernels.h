// The kernels of attention on the CPU.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// Causal attention of queries (batch, queries, query_heads, size) to keys (batch, keys, key_heads, size). The queries
/// have the last positions of the keys. Values and output have value_size instead of size.
template <class T>
struct AttentionCall {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  float* lse;                 ///< (batch, query_heads, queries) log-sum-exp of the scores; null if not needed.
  const int32_t* first_keys;  ///< (batch, keys): first key of the query at a position, ascending; null for 0.
  const float* sinks;         ///< (query_heads) logits whose value is zero; null for none.
  int64_t batch, queries, keys, query_heads, key_heads, size, value_size;
  int64_t window;  ///< Maximum number of keys per query, up to its own position.
  float scale;
  float softcap;  ///< 0 for none.
};

/// Backward of that call: gradients of q, k and v, in their shapes, for `dout`, which has the shape of out.
template <class T>
struct AttentionBackwardCall {
  AttentionCall<T> forward;
  const T* dout;
  T* dq;
  T* dk;
  T* dv;
};

/// Queries, and keys, of a tile of scores.
constexpr int64_t kAttentionTile = 64;
constexpr int64_t blocks_of(int64_t rows) {
  return (rows + kAttentionTile - 1) / kAttentionTile;
}
/// Returns the head size padded to whole register blocks of the widest instruction set.
constexpr int64_t padded_head_size(int64_t size) {
  return (size + 31) / 32 * 32;
}

/// Returns the floats of scratch memory, 64-byte aligned, that a job of attention_forward or attention_backward needs.
template <class T>
constexpr int64_t attention_forward_scratch(const AttentionCall<T>& call) {
  const int64_t key_tile = kAttentionTile * padded_head_size(call.size);
  const int64_t value_tile = kAttentionTile * padded_head_size(call.value_size);
  const int64_t blocks = blocks_of(call.keys);
  return (blocks + 1) * (key_tile + value_tile) + kAttentionTile * kAttentionTile;
}
template <class T>
constexpr int64_t attention_backward_scratch(const AttentionCall<T>& call) {
  const int64_t key_tile = kAttentionTile * padded_head_size(call.size);
  const int64_t value_tile = kAttentionTile * padded_head_size(call.value_size);
  const int64_t tiles = call.query_heads / call.key_heads * blocks_of(call.queries);
  return (tiles + 1) * (3 * key_tile + 2 * value_tile) + 2 * kAttentionTile * (kAttentionTile + tiles);
}

/// On the CPU; T is float or Bf16. Job `index` is key/value head index % key_heads of sequence index / key_heads, with
/// its query heads.
template <class T>
struct AttentionKernels {
  static constexpr bool kHasPairs = sizeof(T) == sizeof(Bf16);
  static constexpr bool kHasTiles = kHasPairs;
  /// Computes the job's query blocks part, part + parts, ...
  void (*forward)(const AttentionCall<T>& call, float* scratch, int64_t index, int64_t part, int64_t parts);
  void (*backward)(const AttentionBackwardCall<T>& call, float* scratch, int64_t index);
};

}  // namespace lehr::ops

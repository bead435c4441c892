// The kernels of the gated delta rule on the CPU; those on a GPU are in launches.h.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// Tokens of a chunk.
constexpr int64_t kDeltaChunk = 64;

/// Returns a head size padded to whole register blocks of the widest instruction set.
constexpr int64_t padded_delta_size(int64_t size) {
  return (size + 31) / 32 * 32;
}

/// Up to kDeltaChunk tokens of one sequence.
struct DeltaChunk {
  int64_t first;  ///< Position in the row.
  int64_t count;
  bool begins;  ///< The first tokens of a sequence.
};

/// The tensors of ops::GatedDeltaInputs and their sizes; `value_heads` is `group` times `key_heads`.
template <class T>
struct DeltaCall {
  const T* query;
  const T* key;
  const T* value;
  const Wide<T>* decay;
  const Wide<T>* beta;
  const Wide<T>* initial;  ///< Null for zero.
  const DeltaChunk* chunks;
  const int64_t* first_chunks;  ///< (batch + 1): the chunks of each row.
  int64_t tokens, key_heads, group, size, value_size;
  bool corrects;  ///< StateUpdate::correct: rows are normalized, and values corrected by what the state holds.

  constexpr int64_t value_heads() const { return key_heads * group; }
  constexpr int64_t padded() const { return padded_delta_size(size); }
  constexpr int64_t padded_value() const { return padded_delta_size(value_size); }
  /// Elements of one state in scratch memory.
  constexpr int64_t state_size() const { return padded() * padded_value(); }
};

/// Backward of that call; gradients have the shapes of their tensors.
template <class T>
struct DeltaBackwardCall {
  DeltaCall<T> forward;
  const T* doutput;
  const Wide<T>* dfinal;  ///< Null for zero.
  T* dquery;
  T* dkey;
  T* dvalue;
  Wide<T>* ddecay;
  Wide<T>* dbeta;
  Wide<T>* dinitial;  ///< Null if not needed.
};

/// Returns the elements of scratch memory, 64-byte aligned, that a job of forward or backward needs; `chunks` is the
/// largest number of chunks of a row.
template <class T>
constexpr int64_t delta_forward_scratch(const DeltaCall<T>& call) {
  const int64_t keys = 3 * call.padded(), values = 3 * call.padded_value();
  return kDeltaChunk * (keys + values + 5 * kDeltaChunk + 6) + call.group * call.state_size();
}
template <class T>
constexpr int64_t delta_backward_scratch(const DeltaCall<T>& call, int64_t chunks) {
  const int64_t keys = 5 * call.padded(), values = 8 * call.padded_value();
  return kDeltaChunk * (keys + values + 7 * kDeltaChunk + 10) + (call.group * (chunks + 1) + 1) * call.state_size();
}

/// Job `index` is key head index % key_heads of row index / key_heads, with its value heads.
template <class T>
struct DeltaKernels {
  /// `output` may be null, and `final` (batch, value_heads, size, value_size).
  void (*forward)(const DeltaCall<T>& call, T* output, Wide<T>* final, Wide<T>* scratch, int64_t index);
  void (*backward)(const DeltaBackwardCall<T>& call, Wide<T>* scratch, int64_t index);
};

}  // namespace lehr::ops

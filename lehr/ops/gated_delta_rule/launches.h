// The kernels of the gated delta rule on a GPU: everything but the matmuls, which are ATen's (cuda.cpp).
//
// A call processes the key heads [first_head, first_head + heads) of `rows` rows. Their tokens are padded to whole
// chunks of kDeltaChunk. All tensors of chunks are contiguous float32 and begin with (rows, heads, chunks), those of
// value heads with (rows, heads, chunks, group).
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/gated_delta_rule/kernels.h"

namespace lehr::ops::cuda {

/// The largest size of a key head: a thread of the scan holds 16 elements of a column of the state, a block 8 times as
/// many.
constexpr int64_t kMostDeltaSize = 128;

/// The part of the operator's tensors that a call processes.
struct DeltaLayout {
  int64_t rows, heads, chunks, group;
  int64_t first_row, first_head, all_heads;  ///< In the tensors of the call, which have `all_heads` key heads.
  int64_t tokens;                            ///< Of a row, without padding.
  const int32_t* cumulative_lengths;         ///< Of the sequences of all rows; null if each row is one sequence.
  int64_t borders;                           ///< Number of cumulative lengths.
};

/// Decays within a chunk, (kDeltaChunk) each. Tokens of different sequences have no decay: their factor is zero.
struct DeltaDecays {
  /// b: the sum of decays from the beginning of the chunk. float64, because weak decays may follow strong ones, and
  /// only differences count.
  double* sum;
  float* from_begin;  ///< E = exp(b); 0 if the token's sequence begins in the chunk, unless the row begins with it.
  float* to_end;      ///< F = exp(b_last - b); 0 if the sequence ends in the chunk.
  float* beta;        ///< 0 for padding.
  int32_t* begin;     ///< The first token of the chunk that is of the token's sequence.
};

/// Matrices of a chunk, (kDeltaChunk, kDeltaChunk), with G_tj = exp(b_t - b_j) within a sequence, else 0. Without
/// corrections kk, inverse and weights are null; without outputs qk and mix.
struct DeltaTriangles {
  const float* kk;  ///< (rows, heads, chunks, ...) k k^T; qk is q k^T.
  const float* qk;
  float* inverse;  ///< Of I + tril(beta k k^T * G, -1).
  float* weights;  ///< -inverse diag(beta E): times k, what the state takes off the corrections.
  float* mix;      ///< tril(q k^T * G): the weights of corrections in outputs.
};

/// In the order of chunks, or in reverse, with a state that begins as `start` (zero if null):
///
///     x = offset + left state
///     state = E_last state + added + right^T x
///
/// Without corrections left, right, offset and x are null, and `added` is not:
///
///     state = E_last state + added
struct DeltaScan {
  const float* left = nullptr;    ///< (..., kDeltaChunk, size)
  const float* right = nullptr;   ///< (..., kDeltaChunk, size)
  const float* offset = nullptr;  ///< (..., kDeltaChunk, value_size)
  const float* start = nullptr;   ///< (rows, heads, group, size, value_size)
  float* states = nullptr;  ///< (..., size, value_size): the state before each chunk (in this order). May be null.
  float* x = nullptr;       ///< (..., kDeltaChunk, value_size). May be null.
  float* last = nullptr;    ///< Like start: the state at the end.
  bool reverse = false;
  const float* added = nullptr;       ///< (..., size, value_size); null for zero. May be `states`.
  const float* from_begin = nullptr;  ///< E
  int64_t size = 0, value_size = 0;
};

/// Gradients through the triangles and decays. Without corrections kk, outer and dkk are null.
struct DeltaTrianglesBackward {
  const float* kk;
  const float* qk;
  const float* outer;          ///< (..., kDeltaChunk, kDeltaChunk): minus the gradient of the system's matrix.
  const float* dmix;           ///< (..., kDeltaChunk, kDeltaChunk)
  const float* through_begin;  ///< (..., kDeltaChunk): E times its gradient.
  const float* through_end;    ///< (..., kDeltaChunk): F times its gradient.
  const float* through_whole;  ///< (...): E_last times its gradient.
  const float* dbeta_direct;   ///< (..., kDeltaChunk): the gradient of beta through the right side of the system.
  float* dkk;  ///< (rows, heads, chunks, kDeltaChunk, kDeltaChunk): strictly lower, sums over the group.
  float* dqk;
  float* ddecay;  ///< (rows of the call, chunks kDeltaChunk, all_heads group), like dbeta.
  float* dbeta;
};

/// On a GPU.
struct DeltaLaunches {
  static constexpr KernelId kId = {
      .name = "gated_delta_rule",
      .element = 0,
      .version = 2,
      .layout = sizeof(DeltaLayout) + 3 * sizeof(DeltaDecays) + 5 * sizeof(DeltaTriangles) + 7 * sizeof(DeltaScan) +
                11 * sizeof(DeltaTrianglesBackward)};
  /// `decay` and `beta` are (rows of the call, chunks kDeltaChunk, all_heads group).
  Status (*decays)(const DeltaLayout& layout, const float* decay, const float* beta, const DeltaDecays& decays);
  Status (*triangles)(const DeltaLayout& layout, const DeltaDecays& decays, const DeltaTriangles& triangles);
  Status (*scan)(const DeltaLayout& layout, const DeltaScan& scan);
  Status (*backward)(const DeltaLayout& layout, const DeltaDecays& decays, const DeltaTrianglesBackward& gradients);
};

}  // namespace lehr::ops::cuda

// The passes of a call of the gated delta rule on a GPU, each over some rows and key heads, so that its temporary
// tensors fit into a number of bytes.
#pragma once

#include <algorithm>

#include "lehr/ops/cpu.h"
#include "lehr/ops/gated_delta_rule/inputs.h"
#include "lehr/ops/gated_delta_rule/launches.h"

namespace lehr::ops::cuda {

/// The rows and key heads of one pass. `in` has the inputs of all, padded to whole chunks.
struct DeltaPart {
  const GatedDeltaInputs& in;
  DeltaLayout layout;

  at::Tensor rows_of(const at::Tensor& x) const { return x.narrow(0, layout.first_row, layout.rows); }
  /// A view (rows, heads, chunks, C, K) of a tensor like keys.
  at::Tensor keys_of(const at::Tensor& x) const {
    const at::Tensor own = rows_of(x).narrow(2, layout.first_head, layout.heads);
    return own.unflatten(1, {layout.chunks, kDeltaChunk}).permute({0, 3, 1, 2, 4});
  }
  /// A view (rows, heads, chunks, group, C, V) of a tensor like values.
  at::Tensor values_of(const at::Tensor& x) const {
    const at::Tensor own = rows_of(x).narrow(2, layout.first_head * layout.group, layout.heads * layout.group);
    return own.unflatten(2, {layout.heads, layout.group})
        .unflatten(1, {layout.chunks, kDeltaChunk})
        .permute({0, 3, 1, 4, 2, 5});
  }
  /// A view (rows, heads group, K, V) of a tensor of states.
  at::Tensor states_of(const at::Tensor& x) const {
    return rows_of(x).narrow(1, layout.first_head * layout.group, layout.heads * layout.group);
  }
  at::TensorOptions options() const { return in.decay.options(); }
  bool corrects() const { return in.update == StateUpdate::correct; }
  int64_t size() const { return in.query.size(3); }
  int64_t value_size() const { return in.value.size(3); }
  /// Chunks of all value heads: N.
  int64_t count() const { return layout.rows * layout.heads * layout.chunks * layout.group; }
};

/// About how many float32 numbers per token a value head and a key head need at the same time.
struct DeltaNeeds {
  int64_t of_value_head, of_key_head;
};

/// Calls body(part) for parts of the rows and key heads that need about `bytes` bytes each. `in` is padded; `tokens`
/// is the number without padding.
template <class Body>
void for_delta_parts(
    const GatedDeltaInputs& in, int64_t tokens, const DeltaNeeds& needed, double bytes, const Body& body) {
  const int64_t rows = in.query.size(0), heads = in.query.size(2), group = in.value.size(2) / heads;
  const auto numbers = static_cast<double>(in.query.size(1) * (needed.of_value_head * group + needed.of_key_head));
  const auto most = std::max<int64_t>(1, static_cast<int64_t>(bytes / (4 * numbers)));  // heads of rows
  const int64_t rows_at_once = std::max<int64_t>(1, most / heads), heads_at_once = std::min(most, heads);
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    for (int64_t head = 0; head < heads; head += heads_at_once) {
      body(DeltaPart{
          in,
          {.rows = std::min(rows_at_once, rows - row),
           .heads = std::min(heads_at_once, heads - head),
           .chunks = in.query.size(1) / kDeltaChunk,
           .group = group,
           .first_row = row,
           .first_head = head,
           .all_heads = heads,
           .tokens = tokens,
           .cumulative_lengths = cpu::elements<int32_t>(in.cumulative_lengths),
           .borders = in.cumulative_lengths.defined() ? in.cumulative_lengths.numel() : 0}});
    }
  }
}

}  // namespace lehr::ops::cuda

#include "lehr/ops/attention/attention_sequences.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <vector>

#include "lehr/meter/operator_watch.h"

namespace lehr::ops {

namespace {
using Ends = std::vector<int32_t>;

// Returns the ends of the sequences of one row; nothing if a document's visible tokens are in several pieces.
std::optional<Ends> ends_of_row(const int64_t* id, const bool* visible, int64_t keys) {
  Ends ends;
  std::unordered_set<int64_t> seen;
  for (int64_t i = 0; i < keys; ++i) {
    const bool shown = visible == nullptr || visible[i];
    const bool begins =
        i == 0 || (id != nullptr && id[i] != id[i - 1]) || (visible != nullptr && shown != visible[i - 1]);
    if (!begins) {
      continue;
    }
    if (shown && !seen.insert(id == nullptr ? 0 : id[i]).second) {
      return std::nullopt;
    }
    if (i > 0) {
      ends.push_back(static_cast<int32_t>(i));
    }
  }
  ends.push_back(static_cast<int32_t>(keys));
  return ends;
}

// Converts ends (B or 1, M) within each row to cumulative lengths (B M + 1) over all rows.
at::Tensor lengths_from_ends(const at::Tensor& ends, int64_t rows, int64_t keys) {
  const at::Tensor first = at::arange(rows, ends.options()).mul(keys).unsqueeze(1);  // (B, 1)
  return at::constant_pad_nd((ends + first).flatten(), {1, 0}, 0);
}
}  // namespace

at::Tensor sequence_ends(const at::Tensor& document_ids, const at::Tensor& key_padding) {
  const at::Tensor& known = document_ids.defined() ? document_ids : key_padding;
  if (!known.defined() || !(known.is_cpu() || known.is_meta())) {
    return {};
  }
  const int64_t rows = std::max(known.size(0), key_padding.defined() ? key_padding.size(0) : 1);
  const int64_t keys = known.size(1);
  const auto options = known.options().dtype(at::kInt);
  if (known.is_meta()) {
    return at::empty({rows, 1}, options);
  }
  at::Tensor ids, visible;
  if (document_ids.defined()) {
    ids = document_ids.to(at::kLong).expand({rows, keys}).contiguous();
  }
  if (key_padding.defined()) {
    visible = key_padding.expand({rows, keys}).contiguous();
  }
  std::vector<Ends> all;
  size_t most = 1;
  for (int64_t row = 0; row < rows; ++row) {
    auto ends = ends_of_row(
        ids.defined() ? ids.const_data_ptr<int64_t>() + row * keys : nullptr,
        visible.defined() ? visible.const_data_ptr<bool>() + row * keys : nullptr,
        keys);
    if (!ends) {
      return {};
    }
    most = std::max(most, ends->size());
    all.push_back(std::move(*ends));
  }
  const auto width = static_cast<int64_t>(std::bit_ceil(most));
  at::Tensor result = at::full({rows, width}, keys, options);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy(all[row].begin(), all[row].end(), result.data_ptr<int32_t>() + row * width);
  }
  return result;
}

AttentionMask row_mask(const at::Tensor& document_ids, const at::Tensor& key_padding, at::Device device) {
  const auto moved = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device) : tensor; };
  return {
      .document_ids = moved(document_ids),
      .key_padding = moved(key_padding),
      .allowed = {},
      .bias = {},
      .sequence_ends = moved(sequence_ends(document_ids, key_padding))};
}

std::optional<at::Tensor> cumulative_lengths_of(const AttentionMask& mask, int64_t rows, int64_t keys) {
  if (mask.cumulative_lengths.defined()) {
    return mask.cumulative_lengths;
  }
  if (!mask.document_ids.defined() && !mask.key_padding.defined()) {
    return at::Tensor();
  }
  const at::Tensor ends =
      mask.sequence_ends.defined() ? mask.sequence_ends : sequence_ends(mask.document_ids, mask.key_padding);
  return ends.defined() ? std::optional(lengths_from_ends(ends, rows, keys)) : std::nullopt;
}

AttentionMask with_cumulative_lengths(AttentionMask mask, int64_t rows) {
  const at::Tensor& known = mask.document_ids.defined() ? mask.document_ids : mask.key_padding;
  const auto well_formed = [&](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.dim() == 2 && (tensor.size(0) == 1 || tensor.size(0) == rows) &&
                                 tensor.size(1) == known.size(known.dim() - 1));
  };
  const bool padding_is_bool = !mask.key_padding.defined() || mask.key_padding.scalar_type() == at::kBool;
  // attention() reports masks of wrong shapes and types.
  if (known.defined() && known.dim() == 2 && well_formed(mask.document_ids) && well_formed(mask.key_padding) &&
      padding_is_bool && operator_watch() == nullptr) {
    mask.cumulative_lengths = cumulative_lengths_of(mask, rows, known.size(1)).value_or(at::Tensor());
  }
  return mask;
}

at::Tensor cumulative_lengths_of_rows(int64_t rows, int64_t keys, at::Device device) {
  return at::arange(rows + 1, at::TensorOptions(at::kInt).device(device)).mul_(keys);
}

at::Tensor without_hidden_queries(const at::Tensor& attended, const at::Tensor& key_padding) {
  if (!key_padding.defined()) {
    return attended;
  }
  const int64_t queries = attended.size(1);
  const at::Tensor own = key_padding.narrow(1, key_padding.size(1) - queries, queries);
  return attended.masked_fill(own.logical_not().unsqueeze(-1).unsqueeze(-1), 0);
}

}  // namespace lehr::ops

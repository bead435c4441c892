// The rows of a language-model loss: which of them count, and how many are taken at a time.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Throws a usage error that names the first label outside [0, vocabulary) that is not ignore_index.
void check_labels(const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index);

/// The rows whose label counts; `index` says where they stand among all, and is undefined if all do.
struct LabelRows {
  at::Tensor hidden;  ///< (n, H)
  at::Tensor labels;  ///< (n)
  at::Tensor index;   ///< (n)
};
LabelRows rows_that_count(const at::Tensor& hidden, const at::Tensor& labels, int64_t ignore_index);

/// The same for a GPU, where the host does not wait to learn which rows count: all rows, those that do not with the
/// label -1, and those that check_labels would throw for with the label `vocabulary`.
LabelRows all_rows(const at::Tensor& hidden, const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index);

/// Puts rows that count back among all `count`, the others zero.
at::Tensor spread(const at::Tensor& rows, const at::Tensor& index, int64_t count);

/// Rows a chunk: enough for an efficient product, few enough that the logits stay in a cache where the vocabulary
/// allows it, and never more than kLogitsBytes. On a GPU as many as kGpuLogitsBytes hold, for its products want
/// thousands of rows. Chunks are of nearly equal size.
int64_t chunk_rows(int64_t rows, int64_t vocabulary, int64_t element_bytes, bool on_gpu);

}  // namespace lehr::ops

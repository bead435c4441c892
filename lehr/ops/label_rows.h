// Selection of the tokens that count in a language-model loss, and their chunk size.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Throws a usage error that names the first label outside [0, vocabulary) that is not ignore_index.
void check_labels(const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index);

/// The n tokens whose label counts. `index` has their positions among all tokens, and is undefined if all count.
struct LabelRows {
  at::Tensor hidden;  ///< (n, H)
  at::Tensor labels;  ///< (n)
  at::Tensor index;   ///< (n)
};
LabelRows rows_that_count(const at::Tensor& hidden, const at::Tensor& labels, int64_t ignore_index);

/// The same for a GPU, where the host does not synchronize to find the tokens that count. Returns all tokens; ignored
/// ones get the label -1, and those for which check_labels would throw get the label `vocabulary`.
LabelRows all_rows(const at::Tensor& hidden, const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index);

/// The tokens that a loss is computed for: all_rows on a GPU, else rows_that_count.
LabelRows loss_rows(const at::Tensor& hidden, const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index);

/// Returns the rows of the counted tokens, by LabelRows::index.
at::Tensor select_rows(const at::Tensor& rows, const at::Tensor& index);

/// Scatters the rows of counted tokens to their positions among all `count` tokens; other rows are zero.
at::Tensor spread(const at::Tensor& rows, const at::Tensor& index, int64_t count);

/// Maximum bytes of the logits of one chunk. Each chunk packs the weight twice, and reads and writes its gradient, so
/// chunks of a large vocabulary need many tokens: 359 float32 tokens of 151,936 words. With the panels of a matmul a
/// chunk takes less than 256 MB.
constexpr int64_t kLogitsBytes = 208 << 20;
/// Maximum bytes of the logits of one chunk on a GPU.
constexpr int64_t kGpuLogitsBytes = 512 << 20;

/// Returns the number of tokens per chunk: enough for an efficient matmul, few enough that the logits stay in cache if
/// the vocabulary permits, and never more than `most_bytes`. On a GPU, whose matmuls need thousands of rows, as many as
/// fit kGpuLogitsBytes. Chunks have nearly equal sizes; if memory bounds them on the CPU, whole panels of a matmul.
int64_t chunk_rows(int64_t rows, int64_t vocabulary, int64_t element_bytes, bool on_gpu, int64_t most_bytes);

}  // namespace lehr::ops

// Labelled texts as padded batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/data/example_dataset.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Options for reading labelled texts.
struct ClassificationOptions {
  int64_t max_length = 0;  ///< Longer texts are truncated.
  /// Batch width: the longest text of the global batch, rounded up to a multiple of this, but at most max_length.
  int64_t pad_to_multiple_of = 1;
  /// The model's pad_token_id, if it has one: a text is pooled at its last token that is another one.
  std::optional<int64_t> pad_token_id{};
  std::string text_key = "text";  ///< Key or column: {"text": "...", "label": 1}.
  std::string label_key = "label";
};

/// A labelled text. Never empty.
struct ClassificationExample {
  std::vector<int32_t> ids;
  int64_t label = 0;
};

/// Texts with labels 0, 1, ..., held in memory as ids. Reads lines "label text" (the format of SST-2 and TREC), JSON
/// lines or tables, of a file, a folder or a pattern (TextSource); also .gz and .zst. Invalid lines, empty texts and
/// negative labels are usage errors with file and line.
class ClassificationDataset : public ExampleDataset<ClassificationExample, ClassificationOptions> {
 public:
  ClassificationDataset(const std::filesystem::path& path, const Tokenizer& tokenizer, ClassificationOptions options);

  /// Returns a hash of the examples and their order.
  uint64_t fingerprint(const SampleOrder::Options& order) const;
  /// Returns the largest label plus one.
  int64_t num_labels() const { return num_labels_; }

 private:
  void read(const std::filesystem::path& file, const Tokenizer& tokenizer);

  int64_t num_labels_ = 0;
};

/// The local sequences of one global step, padded on the right. A sequence of padding only (see BatchPlan::drop_last)
/// has the label kNoLabel and an empty pooling mask.
struct ClassificationBatch {
  int64_t step = 0;
  at::Tensor input_ids;       ///< (B, T) int64
  at::Tensor attention_mask;  ///< (B, T) bool: tokens that are not padding
  /// (B, T) bool: the last token that is not the model's pad_token_id, as in transformers; the first one if all are
  at::Tensor pooling_mask;
  at::Tensor labels;  ///< (B) int64
};

/// Prepares one batch synchronously.
ClassificationBatch make_batch(
    const ClassificationDataset& dataset, const SampleOrder& order, const BatchPlan& plan, int64_t step);

using ClassificationLoader = ExampleLoader<ClassificationDataset, ClassificationBatch>;

}  // namespace lehr::data

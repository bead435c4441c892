// Texts of words with a label each, such as named entities, as padded batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/data/example_dataset.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Options for reading labelled words.
struct TokenClassificationOptions {
  int64_t max_length = 0;  ///< Longer texts are truncated.
  /// Batch width: the longest text of the global batch, rounded up to a multiple of this, but at most max_length.
  int64_t pad_to_multiple_of = 1;
  std::string tokens_key = "tokens";  ///< Key or column: {"tokens": ["EU", "rejects"], "ner_tags": [3, 0]}.
  std::string tags_key = "ner_tags";
};

/// A text with labelled words. Has at least one id with a label.
struct TokenClassificationExample {
  std::vector<int32_t> ids;
  std::vector<int64_t> labels;  ///< Of each id: the word's label at its first id, else kNoLabel.
};

/// Texts whose words have labels 0, 1, ..., held in memory as ids. Reads JSON lines or tables with a list of words and
/// a list of as many labels, Hugging Face's layout of CoNLL-2003, of a file, a folder or a pattern (TextSource); also
/// .gz and .zst. A word's label is that of its first id; a word without ids (an empty one) has none. Invalid rows,
/// lists of different lengths, negative labels and rows without a word are usage errors with file, line and key.
class TokenClassificationDataset : public ExampleDataset<TokenClassificationExample, TokenClassificationOptions> {
 public:
  TokenClassificationDataset(
      const std::filesystem::path& path, const Tokenizer& tokenizer, TokenClassificationOptions options);

  /// Returns a hash of the examples and their order.
  uint64_t fingerprint(const SampleOrder::Options& order) const;
  /// Returns the largest label plus one.
  int64_t num_labels() const { return num_labels_; }

 private:
  void read(const std::filesystem::path& file, const Tokenizer& tokenizer);

  int64_t num_labels_ = 0;
};

/// The local sequences of one global step, padded on the right. A sequence of padding only (see BatchPlan::drop_last)
/// has no label.
struct TokenClassificationBatch {
  int64_t step = 0;
  at::Tensor input_ids;       ///< (B, T) int64
  at::Tensor position_ids;    ///< (B, T) int64: 0, 1, ... in every sequence
  at::Tensor attention_mask;  ///< (B, T) bool: tokens that are not padding
  at::Tensor labels;          ///< (B, T) int64, kNoLabel where there is none
};

/// Prepares one batch synchronously.
TokenClassificationBatch make_batch(
    const TokenClassificationDataset& dataset, const SampleOrder& order, const BatchPlan& plan, int64_t step);

using TokenClassificationLoader = ExampleLoader<TokenClassificationDataset, TokenClassificationBatch>;

}  // namespace lehr::data

// Texts of words with a label each, such as named entities, as padded batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/data/loader.h"
#include "lehr/data/lone_surrogates.h"
#include "lehr/data/sample_order.h"
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
class TokenClassificationDataset {
 public:
  TokenClassificationDataset(
      const std::filesystem::path& path, const Tokenizer& tokenizer, TokenClassificationOptions options);

  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  /// Returns a hash of the examples and their order.
  uint64_t fingerprint(const SampleOrder::Options& order) const;
  /// Returns the largest label plus one.
  int64_t num_labels() const { return num_labels_; }
  const TokenClassificationExample& example(int64_t index) const { return examples_[index]; }
  const TokenClassificationOptions& options() const { return options_; }
  int64_t pad_id() const { return pad_id_; }
  /// Returns the lone surrogates that were replaced in the texts.
  const LoneSurrogates& lone_surrogates() const { return lone_surrogates_; }

 private:
  void read(const std::filesystem::path& file, const Tokenizer& tokenizer);

  std::vector<TokenClassificationExample> examples_;
  LoneSurrogates lone_surrogates_;
  TokenClassificationOptions options_;
  int64_t num_labels_ = 0;
  int64_t pad_id_ = 0;
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

/// Loads batches of labelled words, step by step, in the order of a SampleOrder. The width is that of the global batch,
/// so it is the same on every rank. May be destroyed at any time.
class TokenClassificationLoader {
 public:
  TokenClassificationLoader(
      std::shared_ptr<const TokenClassificationDataset> dataset,
      SampleOrder::Options order,
      BatchPlan plan,
      PrefetchOptions options = {});

  /// Returns the next step's batch; nothing at the end of finite data.
  std::optional<TokenClassificationBatch> next() { return pipeline_.next(); }

 private:
  OrderedPipeline<int64_t, TokenClassificationBatch> pipeline_;
};

}  // namespace lehr::data

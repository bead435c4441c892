// Labelled texts as padded batches.
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
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Options for reading labelled texts.
struct ClassificationOptions {
  int64_t max_length = 0;  ///< Longer texts are truncated.
  /// Batch width: the longest text of the global batch, rounded up to a multiple of this, but at most max_length.
  int64_t pad_to_multiple_of = 1;
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
class ClassificationDataset {
 public:
  ClassificationDataset(const std::filesystem::path& path, const Tokenizer& tokenizer, ClassificationOptions options);

  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  /// Returns a hash of the examples and their order.
  uint64_t fingerprint(const SampleOrder::Options& order) const;
  /// Returns the largest label plus one.
  int64_t num_labels() const { return num_labels_; }
  const ClassificationExample& example(int64_t index) const { return examples_[index]; }
  const ClassificationOptions& options() const { return options_; }
  int64_t pad_id() const { return pad_id_; }
  /// Returns the lone surrogates that were replaced in the texts.
  const LoneSurrogates& lone_surrogates() const { return lone_surrogates_; }

 private:
  void read(const std::filesystem::path& file, const Tokenizer& tokenizer);

  std::vector<ClassificationExample> examples_;
  LoneSurrogates lone_surrogates_;
  ClassificationOptions options_;
  int64_t num_labels_ = 0;
  int64_t pad_id_ = 0;
};

/// The local sequences of one global step, padded on the right. A sequence of padding only (see BatchPlan::drop_last)
/// has the label kNoLabel and an empty pooling mask.
struct ClassificationBatch {
  int64_t step = 0;
  at::Tensor input_ids;       ///< (B, T) int64
  at::Tensor attention_mask;  ///< (B, T) bool: tokens that are not padding
  at::Tensor pooling_mask;    ///< (B, T) bool: the last token that is not padding
  at::Tensor labels;          ///< (B) int64
};

/// Loads batches of labelled texts, step by step, in the order of a SampleOrder. The width is that of the global batch,
/// so it is the same on every rank. May be destroyed at any time.
class ClassificationLoader {
 public:
  ClassificationLoader(
      std::shared_ptr<const ClassificationDataset> dataset,
      SampleOrder::Options order,
      BatchPlan plan,
      PrefetchOptions options = {});

  /// Returns the next step's batch; nothing at the end of finite data.
  std::optional<ClassificationBatch> next() { return pipeline_.next(); }

 private:
  OrderedPipeline<int64_t, ClassificationBatch> pipeline_;
};

}  // namespace lehr::data

// Pairs of texts that belong together, optionally with a hard negative, as padded batches: the data of an embedding
// task.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/data/example_dataset.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Options for reading pairs.
struct PairsOptions {
  int64_t max_length = 0;  ///< Longer texts are truncated.
  /// Batch width: the longest text of the global batch, rounded up to a multiple of this, but at most max_length.
  int64_t pad_to_multiple_of = 1;
  std::string anchor_key = "anchor";  ///< Key or column: {"anchor": "...", "positive": "..."}.
  std::string positive_key = "positive";
  std::string negative_key = "";  ///< Empty: no hard negatives.

  /// The keys of an example's texts, in order: anchor, positive and, if there are hard negatives, negative.
  std::vector<std::string> keys() const;
  /// Number of texts of an example, which are consecutive sequences of a batch: 2 or 3.
  int64_t num_texts() const { return negative_key.empty() ? 2 : 3; }
};

/// An example: the ids of its texts in the order of PairsOptions::keys(). No text is empty.
using PairsExample = std::vector<std::vector<int32_t>>;

/// Pairs, held in memory as ids. Reads JSON lines or tables, of a file, a folder or a pattern (TextSource); also .gz
/// and .zst. Invalid lines, missing keys and empty texts are usage errors with file and line.
class PairsDataset : public ExampleDataset<PairsExample, PairsOptions> {
 public:
  PairsDataset(const std::filesystem::path& path, const Tokenizer& tokenizer, PairsOptions options);

  /// Returns a hash of the examples and their order.
  uint64_t fingerprint(const SampleOrder::Options& order) const;

 private:
  void read(const std::filesystem::path& file, const Tokenizer& tokenizer);
};

/// The local sequences of one global step, padded on the right. The texts of an example are consecutive sequences, so B
/// is the number of local examples times num_texts(). Sequences of padding only (see BatchPlan::drop_last) are not
/// valid, and their first position is pooled, so that every rank has as many embeddings as sequences.
struct PairsBatch {
  int64_t step = 0;
  at::Tensor input_ids;       ///< (B, T) int64
  at::Tensor attention_mask;  ///< (B, T) bool: tokens that are not padding
  at::Tensor pooling_mask;    ///< (B, T) bool: one position per sequence, the last token that is not padding
  at::Tensor valid;           ///< (B) bool: sequences of an example
};

/// Loads batches of pairs, step by step, in the order of a SampleOrder. The width is that of the global batch, so it is
/// the same on every rank. May be destroyed at any time.
class PairsLoader {
 public:
  /// `plan` counts examples. A rank runs `microbatch` of its examples at a time (default: all), and the examples that
  /// the ranks run together are consecutive in the global batch: the in-batch negatives do not depend on the number of
  /// ranks that share a micro-batch. Throws a usage error if it does not divide the rank's examples.
  PairsLoader(
      std::shared_ptr<const PairsDataset> dataset,
      SampleOrder::Options order,
      BatchPlan plan,
      std::optional<int64_t> microbatch = {},
      PrefetchOptions options = {});

  /// Returns the next step's batch; nothing at the end of finite data.
  std::optional<PairsBatch> next() { return pipeline_.next(); }

 private:
  OrderedPipeline<int64_t, PairsBatch> pipeline_;
};

}  // namespace lehr::data

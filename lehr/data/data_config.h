// The section [data] of a run's config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/data/packing.h"

namespace lehr::data {

/// Format of a dataset; by_name: by the extension of its files (DatasetConfig::fields describes each).
enum class DatasetKind { by_name, tokens, text, jsonl, classification, token_classification, pairs, chat };

/// The handling of conversations longer than a sequence.
enum class TooLong { drop, truncate };

/// An entry of [[data.datasets]].
struct DatasetConfig {
  std::string path{};
  DatasetKind kind = DatasetKind::by_name;
  double weight = 1.0;
  std::string text_key = "text";
  std::string label_key = "label";
  std::string tokens_key = "tokens";
  std::string tags_key = "ner_tags";
  std::string anchor_key = "anchor";
  std::string positive_key = "positive";
  std::string negative_key{};
  int64_t pad_to_multiple_of = 8;
  std::string split_documents{};
  std::string messages_key = "messages";
  std::string prompt_key{};
  std::string input_key{};
  std::string answer_key{};
  TooLong too_long = TooLong::drop;

  void fields(FieldVisitor& v);
};

/// The training data and its order.
struct DataConfig {
  std::vector<DatasetConfig> datasets;
  std::optional<int64_t> seed;
  bool shuffle = true;
  bool repeat = true;
  Packing packing = Packing::concat;
  double validation_fraction = 0.0;
  std::string validation_path;
  std::string cache_folder;
  int64_t num_workers = 2;
  int64_t prefetch = 4;

  void fields(FieldVisitor& v);
  /// Checks rules across fields; keys are full ("data.datasets.0.weight").
  void check(Problems& problems) const;
  /// Returns whether some of the datasets are of a kind.
  bool has(DatasetKind kind) const;
  /// Returns the number of sequences that an example takes: with pairs the number of its texts (2, or 3 with hard
  /// negatives), otherwise 1.
  int64_t rows_per_example() const;
};

}  // namespace lehr::data

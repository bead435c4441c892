// From the config to datasets: opens token files, turns text into tokens once, splits off validation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "lehr/data/chat_template.h"
#include "lehr/data/classification.h"
#include "lehr/data/data_config.h"
#include "lehr/data/dataset.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// What opening data needs beside the section [data].
struct OpenDataOptions {
  int64_t seq_len = 0;
  /// Of the model; ids of the data must be smaller.
  int64_t vocab_size = 0;
  /// Used unless data.seed is given.
  uint64_t seed = 0;
  /// Used unless data.cache_folder is given. Empty: text is tokenized in memory at every start.
  std::filesystem::path cache_folder{};
  /// Gets a sentence when something is worth telling: what is tokenized, what was found in the cache.
  std::function<void(const std::string&)> inform{};
  /// How conversations are written; needed if there are any.
  std::shared_ptr<const ChatTemplate> chat_template{};
};

/// Data for a language model. Validation data is finite and in the corpus's own order; null when there is none.
struct LanguageData {
  std::shared_ptr<const MixedDataset> train;
  std::shared_ptr<const MixedDataset> validation;
};

/// Opens all datasets of a config. Every rank calls it; whoever comes first tokenizes, the others on the same machine
/// wait for the file. Throws usage errors that name the file: missing or damaged data, a token file of another
/// tokenizer, ids outside the model's vocabulary.
LanguageData open_data(const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options);

/// Labelled texts of a config with one dataset of the kind "classification"; validation is null when there is none.
struct ClassificationData {
  std::shared_ptr<const ClassificationDataset> train;
  std::shared_ptr<const ClassificationDataset> validation;
};
ClassificationData open_classification(
    const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options);

/// The tokens of one dataset, not classification: a token file as it is; text through the cache, or, when there is no
/// cache folder or the text is small (4 MiB), in memory; conversations in memory.
TokenStream open_tokens(const DatasetConfig& dataset, const Tokenizer& tokenizer, const OpenDataOptions& options);

}  // namespace lehr::data

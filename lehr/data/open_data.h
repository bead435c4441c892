// Opening of the datasets of a config: opens token files, tokenizes text once, splits off validation data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lehr/data/chat_template.h"
#include "lehr/data/classification.h"
#include "lehr/data/data_config.h"
#include "lehr/data/dataset.h"
#include "lehr/data/pairs.h"
#include "lehr/data/token_classification.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Inputs of open_data besides the section [data].
struct OpenDataOptions {
  int64_t seq_len = 0;
  /// Vocabulary size of the model; ids of the data must be smaller.
  int64_t vocab_size = 0;
  /// The model's pad_token_id, at which no text of a classifier is pooled.
  std::optional<int64_t> pad_token_id{};
  /// Default of data.seed.
  uint64_t seed = 0;
  /// Default of data.cache_folder. Empty: text is tokenized in memory at every start.
  std::filesystem::path cache_folder{};
  /// Receives messages about progress: files being tokenized, cache hits.
  std::function<void(const std::string&)> inform{};
  /// Template that renders conversations; required if a dataset has conversations.
  std::shared_ptr<const ChatTemplate> chat_template{};
};

/// Data for a language model. Validation data is finite and in the corpus's own order; null if there is none.
struct LanguageData {
  std::shared_ptr<const MixedDataset> train;
  std::shared_ptr<const MixedDataset> validation;
};

/// Opens all datasets of a config. Every rank calls it; the first one tokenizes, and the others on the same machine
/// wait for the file. Throws usage errors that name the file: missing or damaged data, a token file of another
/// tokenizer, ids outside the model's vocabulary.
LanguageData open_data(const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options);

/// Examples of a config with one dataset of such a kind; validation is null if there is none.
template <class Dataset>
struct Examples {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;
};

/// Opens labelled texts, of the kind "classification".
Examples<ClassificationDataset> open_classification(
    const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options);

/// Opens labelled words, of the kind "token_classification".
Examples<TokenClassificationDataset> open_token_classification(
    const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options);

/// Opens pairs of texts, of the kind "pairs".
Examples<PairsDataset> open_pairs(const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options);

/// Returns the tokens of one dataset of another kind than these: token files are mapped; text is tokenized through the
/// cache, or in memory if there is no cache folder or the text is small (4 MiB); conversations are tokenized in memory.
TokenStream open_tokens(const DatasetConfig& dataset, const Tokenizer& tokenizer, const OpenDataOptions& options);

}  // namespace lehr::data

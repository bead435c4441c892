// Parallel tokenization of text, with a result that does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/data/corpus.h"
#include "lehr/data/token_file.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Progress of tokenization. Bytes are bytes of files on disk, counted when a file is complete.
struct TokenizeProgress {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  int64_t finished_bytes = 0;
  int64_t total_bytes = 0;
};

/// Options of tokenize_documents.
struct TokenizeOptions {
  /// Number of encoding threads; 0: as many as the machine has cores.
  int64_t num_threads = 0;
  /// End every document with the tokenizer's eos id, if it has one.
  bool append_eos = true;
  /// Put Tokenizer::special_tokens around every document.
  bool special_tokens = true;
  /// Called from time to time on the calling thread, and once at the end.
  std::function<void(const TokenizeProgress&)> progress{};
  /// Receives a sentence if documents get no end, and LoneSurrogates::report() at the end unless it is empty.
  std::function<void(const std::string&)> inform{};
};

/// Returns the ids of a document: those of its text with `special` around them, and `eos` at the end unless that is the
/// last of them.
std::vector<int32_t> document_ids(
    std::string_view text, const Tokenizer& tokenizer, const SpecialTokens& special, std::optional<int32_t> eos);

/// Passes the ids of every document, in order, to `sink` on the calling thread. Memory is bounded by the longest
/// documents.
TokenizeProgress tokenize_documents(
    std::vector<TextSource> sources,
    const Tokenizer& tokenizer,
    const TokenizeOptions& options,
    const std::function<void(std::span<const int32_t>)>& sink);

/// Writes the token file `output`. On errors nothing is left on disk.
TokenFileInfo tokenize_corpus(
    std::vector<TextSource> sources,
    const Tokenizer& tokenizer,
    const std::filesystem::path& output,
    const TokenizeOptions& options = {});

/// Returns a hash that distinguishes tokenizers by their behaviour: the ids of a text in many scripts, and the eos id.
/// Never 0.
uint64_t tokenizer_fingerprint(const Tokenizer& tokenizer);

/// Returns whether the tokenizer.json of a model's folder gives other ids for ordinary text than `tokenizer`; special
/// tokens may differ. False if the folder has no such file, or one that cannot be read.
bool has_other_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace lehr::data

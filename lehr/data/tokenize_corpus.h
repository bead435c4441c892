// Text to ids at the speed of all cores, with a result that does not depend on how many there are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "lehr/data/corpus.h"
#include "lehr/data/token_file.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// How far tokenizing has come. Bytes are bytes of files on disk, counted when a file is done.
struct TokenizeProgress {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  int64_t finished_bytes = 0;
  int64_t total_bytes = 0;
};

struct TokenizeOptions {
  /// Threads that encode; 0: as many as the machine has cores.
  int64_t num_threads = 0;
  /// Ends every document with the tokenizer's eos id, if it has one.
  bool append_eos = true;
  /// Called now and then on the calling thread, and once at the end.
  std::function<void(const TokenizeProgress&)> progress{};
};

/// Gives the ids of every document, in order, to `sink` on the calling thread. Memory is bounded by the longest
/// documents.
TokenizeProgress tokenize_documents(
    std::vector<TextSource> sources,
    const Tokenizer& tokenizer,
    const TokenizeOptions& options,
    const std::function<void(std::span<const int32_t>)>& sink);

/// Writes the token file `output`. On any error nothing is left there.
TokenFileInfo tokenize_corpus(
    std::vector<TextSource> sources,
    const Tokenizer& tokenizer,
    const std::filesystem::path& output,
    const TokenizeOptions& options = {});

/// A number that tells tokenizers apart by what they do: the ids of a text of many scripts, and the eos id. Never 0.
uint64_t tokenizer_fingerprint(const Tokenizer& tokenizer);

}  // namespace lehr::data

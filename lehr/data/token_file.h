// Token files: a corpus as ids on disk, read by memory mapping.
//
// Layout, little-endian: a header of 256 bytes; the ids, uint16 (vocabularies up to 65536) or int32; zeros up to a
// multiple of 8; num_documents + 1 positions, uint64, where document i is [p[i], p[i+1]). So
// numpy.memmap(file, dtype="uint16", offset=256, shape=num_tokens) reads the ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "lehr/data/append_file.h"
#include "lehr/data/token_stream.h"

namespace lehr::data {

/// The header of a token file.
struct TokenFileInfo {
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  int64_t vocab_size = 0;
  int64_t max_id = -1;
  uint64_t tokenizer_fingerprint = 0;  ///< See tokenizer_fingerprint() in tokenize_corpus.h; 0: unknown.
};

/// Writes a token file document by document in bounded memory. finish() renames the file into place; without it nothing
/// is left on disk.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size, uint64_t tokenizer_fingerprint = 0);
  /// Ids must be in [0, vocab_size).
  void append(std::span<const int32_t> document);
  TokenFileInfo finish();

 private:
  std::filesystem::path path_;
  AppendFile file_;
  AppendFile boundaries_;
  TokenFileInfo info_;
  uint64_t content_hash_;
  std::vector<uint16_t> narrow_;
};

/// Maps a token file. Throws a usage error for a file that is not a token file, has another size than its header
/// states, or (checked up to 64 MiB, where it is cheap) has damaged content.
TokenStream open_token_file(const std::filesystem::path& path);

/// Returns whether the file begins like a token file.
bool is_token_file(const std::filesystem::path& path);

/// Reads the whole file and throws a usage error if its content is damaged.
void verify_token_file(const std::filesystem::path& path);

}  // namespace lehr::data

// Token files: a corpus as ids on disk, read by memory mapping.
//
// Layout, little-endian: a header of 256 bytes; the ids, uint16 (vocabularies up to 65536) or int32; zeros up to a
// multiple of 8; num_documents + 1 positions, uint64, where document i is [p[i], p[i+1]). So that
// numpy.memmap(file, dtype="uint16", offset=256, shape=num_tokens) reads the ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "lehr/data/output_file.h"
#include "lehr/data/token_stream.h"

namespace lehr::data {

/// What a token file's header says.
struct TokenFileInfo {
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  int64_t vocab_size = 0;
  int64_t max_id = -1;
  uint64_t tokenizer_fingerprint = 0;  ///< As tokenizer_fingerprint() of tokenize_corpus.h gives it; 0: not known.
};

/// Writes a token file document by document in bounded memory. The file gets its name in finish(); without it nothing
/// is left behind.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size, uint64_t tokenizer_fingerprint = 0);
  /// Ids must be in [0, vocab_size).
  void append(std::span<const int32_t> document);
  TokenFileInfo finish();

 private:
  std::filesystem::path path_;
  OutputFile file_;
  OutputFile boundaries_;
  TokenFileInfo info_;
  uint64_t content_hash_;
  std::vector<uint16_t> narrow_;
};

/// Maps a token file. A file that is not one, has another size than its header says, or (up to 64 MiB, where it costs
/// little) other content is a usage error that says so.
TokenStream open_token_file(const std::filesystem::path& path);

/// Whether the file begins as a token file does.
bool is_token_file(const std::filesystem::path& path);

/// Reads the whole file and throws a usage error unless its content is what was written.
void verify_token_file(const std::filesystem::path& path);

/// The header alone.
TokenFileInfo read_token_file_info(const std::filesystem::path& path);

}  // namespace lehr::data

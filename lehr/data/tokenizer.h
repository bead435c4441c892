// What everything else needs of a tokenizer, whatever its kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data {

/// Turns text into ids and back. Immutable once built; every function may be called from many threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of UTF-8 `text`. Added tokens in the text are recognised; nothing (bos, eos) is added around it. Bytes that
  /// are no UTF-8 are encoded as they are, so that no input is refused or changed.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  /// Text of `ids`; invalid UTF-8 becomes U+FFFD. With `skip_special`, special tokens are left out. Ids without a token
  /// (a model's vocabulary may be padded) give nothing.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  /// One more than the largest id.
  virtual int64_t vocab_size() const = 0;

  /// The id that ends a document, if the tokenizer has one.
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const = 0;

  /// Files that an exported model folder needs beside its weights (tokenizer.json, ...); empty for the byte tokenizer.
  virtual std::vector<std::filesystem::path> files() const = 0;
};

/// Opens a tokenizer: the word "byte" (ids 0..255 are bytes, 256 ends a document), or a folder that holds
/// tokenizer.json (and, if present, tokenizer_config.json), or the tokenizer.json itself (`.gz` too).
/// Throws a usage error that names the file and the field when it cannot be read or uses a part that is not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, const std::string& subject = "tokenizer");

/// Copies the tokenizer's files into `folder`, which must exist; what is packed (`.gz`) is unpacked.
void export_tokenizer_files(const Tokenizer& tokenizer, const std::filesystem::path& folder);

/// Name and content of each file that export_tokenizer_files writes.
std::vector<std::pair<std::string, std::string>> tokenizer_file_contents(const Tokenizer& tokenizer);

}  // namespace lehr::data

// The interface of tokenizers.
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

/// The special tokens that a model expects around a text, such as a bos: those that the post-processor of
/// tokenizer.json adds, as transformers does by default (add_special_tokens).
struct SpecialTokens {
  std::vector<int32_t> before;
  std::vector<int32_t> after;

  size_t size() const { return before.size() + after.size(); }
  /// Returns `ids` with these tokens around them.
  std::vector<int32_t> around(std::span<const int32_t> ids) const;
};

/// Converts text to ids and back. Immutable once built; all functions may be called from several threads concurrently.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the ids of UTF-8 `text`. Added tokens in the text are recognized; no bos or eos is added. Invalid UTF-8 is
  /// encoded byte by byte, so that no input is refused or changed.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  /// Returns the ids of the parts of `text` between the ascending offsets `cuts` in bytes: one list more than there are
  /// cuts. Together they are encode(text) if no token of that crosses a cut.
  virtual std::vector<std::vector<int32_t>> encode_parts(std::string_view text, std::span<const size_t> cuts) const;

  /// Returns the special tokens around a text, which encode() does not add; none for most models of conversations,
  /// whose chat template has them.
  virtual SpecialTokens special_tokens() const { return {}; }

  /// Returns the ids of one word of a text. A space precedes every word, the first one included, as by transformers'
  /// tokenizers with is_split_into_words and add_prefix_space; none if the word is empty or begins with one.
  virtual std::vector<int32_t> encode_word(std::string_view word) const;

  /// Returns the text of `ids`; invalid UTF-8 becomes U+FFFD. With `skip_special`, special tokens are omitted. Ids
  /// without a token (a model's vocabulary may be padded) decode to nothing.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  /// Returns the largest id plus one.
  virtual int64_t vocab_size() const = 0;

  /// Returns the id that ends a document, if the tokenizer has one.
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const = 0;
  /// Returns the id that pads sequences: pad_id(), else eos_id(), else 0.
  int32_t padding_id() const { return pad_id().value_or(eos_id().value_or(0)); }

  /// Returns the files that an exported model folder needs besides its weights (tokenizer.json, ...); none for the byte
  /// tokenizer.
  virtual std::vector<std::filesystem::path> files() const = 0;
};

/// Opens a tokenizer: the word "byte" (ids 0..255 are bytes, 256 ends a document), a folder that contains
/// tokenizer.json (and optionally the files beside it), or the tokenizer.json itself (also `.gz`). Throws a usage
/// error that names the file and the field if it cannot be read or uses an unsupported feature.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, const std::string& subject = "tokenizer");

/// Returns name and content of each of the tokenizer's files; `.gz` files are decompressed.
std::vector<std::pair<std::string, std::string>> tokenizer_file_contents(const Tokenizer& tokenizer);

}  // namespace lehr::data

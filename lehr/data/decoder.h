// The decoder of tokenizer.json: from the tokens of a text to the text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lehr/data/bpe_vocabulary.h"

namespace lehr::data {

/// Converts tokens to text. Immutable: several threads may call `decode` concurrently.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Returns the text of the tokens of Vocabulary::bytes_of; invalid UTF-8 becomes U+FFFD.
  virtual std::string decode(std::span<const std::string_view> tokens) const = 0;
  /// Returns how the vocabulary spells its tokens.
  virtual Spelling spelling() const = 0;
  /// Returns the text that stands for a space in tokens; empty with Spelling::bytes.
  virtual std::string space() const = 0;
};

/// Reads `decoder` of tokenizer.json: ByteLevel, or a Sequence of Replace, ByteFallback, Fuse and perhaps Strip, which
/// tokenizers made from SentencePiece models have. Throws a usage error that begins with `where` for others.
std::unique_ptr<Decoder> read_decoder(const nlohmann::json& node, const std::string& where);

}  // namespace lehr::data

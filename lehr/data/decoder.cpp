#include "lehr/data/decoder.h"

#include <simdjson.h>

#include <charconv>
#include <optional>

#include "lehr/data/tokenizer_json.h"
#include "lehr/data/unicode.h"

namespace lehr::data {

using nlohmann::json;

namespace {

class ByteLevelDecoder : public Decoder {
 public:
  std::string decode(std::span<const std::string_view> tokens) const override {
    std::string bytes;
    for (const std::string_view token : tokens) {
      bytes += token;
    }
    return replace_invalid_utf8(std::move(bytes));
  }
  Spelling spelling() const override { return Spelling::bytes; }
  std::string space() const override { return {}; }
};

/// Returns the byte of a token such as "<0x0A>".
std::optional<char> byte_of(std::string_view token) {
  unsigned value = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? std::optional(static_cast<char>(value)) : std::nullopt;
}

class SentencePieceDecoder : public Decoder {
 public:
  /// With `strip`, a space that the text begins with is left out.
  SentencePieceDecoder(std::string space, bool strip) : space_(std::move(space)), strip_(strip) {}

  std::string decode(std::span<const std::string_view> tokens) const override {
    std::string text, bytes;  // of successive tokens for bytes
    const auto add_bytes = [&] {
      if (simdjson::validate_utf8(bytes)) {
        text += bytes;
      } else {  // one for each byte, as in `tokenizers`
        for (size_t i = 0; i < bytes.size(); ++i) {
          append_utf8(text, 0xFFFD);
        }
      }
      bytes.clear();
    };
    for (std::string_view token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes += *byte;
        continue;
      }
      add_bytes();
      for (size_t at = token.find(space_); at != std::string_view::npos; at = token.find(space_)) {
        text.append(token.substr(0, at)) += ' ';
        token.remove_prefix(at + space_.size());
      }
      text += token;
    }
    add_bytes();
    if (strip_ && text.starts_with(' ')) {
      text.erase(0, 1);
    }
    return text;
  }
  Spelling spelling() const override { return Spelling::characters; }
  std::string space() const override { return space_; }

 private:
  std::string space_;
  bool strip_;
};

/// Returns the text that a Replace decodes to a space.
std::string read_space(const json& node, const std::string& where) {
  const auto pattern = json_at<json>(node, "pattern", where);
  const auto space = json_at<std::string>(pattern, "String", where + ".pattern");
  require(!space.empty(), "{}.pattern.String: expected a text, found none", where);
  const auto content = json_or<std::string>(node, "content", "", where);
  require(content == " ", "{}.content: expected a space, found \"{}\", which is not supported", where, content);
  return space;
}

void check_strip(const json& node, const std::string& where) {
  require(
      json_at<std::string>(node, "content", where) == " " && json_or<int64_t>(node, "start", 0, where) == 1 &&
          json_or<int64_t>(node, "stop", 0, where) == 0,
      "{}: expected content \" \", start 1 and stop 0; other ones are not supported",
      where);
}

}  // namespace

std::unique_ptr<Decoder> read_decoder(const json& node, const std::string& where) {
  require(!node.is_null(), "{}: is missing; expected ByteLevel, or a Sequence for a SentencePiece vocabulary", where);
  const auto type = json_at<std::string>(node, "type", where);
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelDecoder>();
  }
  require(
      type == "Sequence",
      "{}.type: expected ByteLevel, or a Sequence of Replace, ByteFallback, Fuse and Strip, found \"{}\", which is not "
      "supported",
      where,
      type);
  const auto parts = json_list_at(node, "decoders", where);
  std::string types;
  for (size_t i = 0; i < parts.size(); ++i) {
    types += (i == 0 ? "" : ", ") + json_at<std::string>(parts[i], "type", fmt::format("{}.decoders[{}]", where, i));
  }
  if (types == "ByteLevel") {
    return std::make_unique<ByteLevelDecoder>();
  }
  const std::string of_sentencepiece = "Replace, ByteFallback, Fuse";
  const bool strip = types == of_sentencepiece + ", Strip";
  require(
      strip || types == of_sentencepiece,
      "{}.decoders: expected ByteLevel, or Replace, ByteFallback, Fuse and perhaps Strip, found \"{}\", which is not "
      "supported",
      where,
      types);
  if (strip) {
    check_strip(parts[3], where + ".decoders[3]");
  }
  return std::make_unique<SentencePieceDecoder>(read_space(parts[0], where + ".decoders[0]"), strip);
}

}  // namespace lehr::data

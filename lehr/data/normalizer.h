// The normalizer of tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lehr::data {

/// Steps that are applied in order to the text between added tokens. Immutable once read: several threads may call
/// `apply` concurrently.
class Normalizer {
 public:
  /// Memory for results, which one call of `apply` after another may use.
  struct Buffers {
    std::string first;
    std::string second;
  };

  /// Reads `normalizer` of tokenizer.json: null, NFC, Prepend, Replace (of a string) or a Sequence of these. Throws a
  /// usage error that begins with `where` for others, for replacements that may make a text more than 64 times as long,
  /// and for more than 64 bytes before it.
  static Normalizer read(const nlohmann::json& node, const std::string& where);

  /// Returns `text` with all steps applied. The result is part of `text` or of `buffers`. If `continued`, other text
  /// precedes it without an added token in between, and nothing is prepended.
  std::string_view apply(std::string_view text, Buffers& buffers, bool continued = false) const;

  /// Whether a text begins with something else than its own first character.
  bool prepends() const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    std::string pattern;
    std::string content;
  };
  using Step = std::variant<Nfc, Prepend, Replace>;

  void add(const nlohmann::json& node, const std::string& where);

  std::vector<Step> steps_;
  size_t growth_ = 1;     // the most by which replacements multiply the length of a text,
  size_t prepended_ = 0;  // and the most bytes that come before it
};

}  // namespace lehr::data

// JSON escapes that are not characters: halves of surrogate pairs.
#pragma once

#include <cstdint>
#include <string>

namespace lehr::data {

/// Replaces escapes of half a surrogate pair, as "\ud83d" without "\ude00", by U+FFFD, and counts the texts with one.
/// Some writers of JSON cut text between the halves; UTF-8 cannot encode a half, so no tokenizer can read it.
class LoneSurrogates {
 public:
  /// Changes `json`, which begins at `line` of `file`; returns whether it had one. Linear in its length.
  bool replace(std::string& json, const std::string& file, int64_t line);

  /// Returns "FILE:LINE: ... ", one sentence for all texts that were changed; empty if none was.
  std::string report() const;

 private:
  int64_t texts_ = 0;
  std::string first_;
};

}  // namespace lehr::data

// The text of tokens that continue others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Returns what `ids` add to the text of the ids `before` them. That is Tokenizer::decode of `ids`, but for a space
/// that some decoders leave out at the start of a text.
inline std::string decode_after(
    const Tokenizer& tokenizer, std::span<const int32_t> before, std::span<const int32_t> ids, bool skip_special) {
  std::vector<int32_t> all(before.begin(), before.end());
  const std::string start = tokenizer.decode(all, skip_special);
  all.insert(all.end(), ids.begin(), ids.end());
  const std::string whole = tokenizer.decode(all, skip_special);
  // They differ where a character begins in `before` and ends in `ids`.
  return whole.starts_with(start) ? whole.substr(start.size()) : tokenizer.decode(ids, skip_special);
}

/// The text of tokens that are generated one by one after others, in pieces of whole characters.
class GrowingText {
 public:
  /// `before` are the last ids before the text. `tokenizer` must outlive this.
  GrowingText(const Tokenizer& tokenizer, std::vector<int32_t> before)
      : tokenizer_(tokenizer), before_(std::move(before)) {}

  /// Returns what the token adds; nothing while the text ends with bytes that are not a complete character yet.
  std::string add(int32_t id) {
    ids_.push_back(id);
    const std::string text = decode_after(tokenizer_, before_, ids_, /*skip_special=*/true);
    return text.ends_with("\xEF\xBF\xBD") ? "" : after_last(text);
  }

  /// Returns what was held back.
  std::string finish() { return after_last(decode_after(tokenizer_, before_, ids_, /*skip_special=*/true)); }

 private:
  std::string after_last(const std::string& text) {
    // An incomplete character changes the text of the byte tokens before it, which may have been returned: the new text
    // does not begin with the last one then, and its next character follows.
    size_t begin = std::min(size_, text.size());
    while (begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
      ++begin;
    }
    size_ = std::max(size_, text.size());
    return text.substr(begin);
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> before_, ids_;
  size_t size_ = 0;  // in bytes, of the text that was returned
};

}  // namespace lehr::data

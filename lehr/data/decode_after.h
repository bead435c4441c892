// The text of tokens that continue others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
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

}  // namespace lehr::data

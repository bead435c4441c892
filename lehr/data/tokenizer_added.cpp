// A trie of the added tokens, entered only at first bytes of tokens.
#include "lehr/data/tokenizer_added.h"

#include <algorithm>
#include <cstring>

#include "lehr/data/unicode.h"

namespace lehr::data {

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : nodes_(1) {
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) {
      continue;
    }
    size_t node = 0;
    for (char c : token.content) {
      const auto byte = static_cast<uint8_t>(c);
      auto& next = nodes_[node].next;
      const auto at = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == byte; });
      if (at != next.end()) {
        node = at->second;
        continue;
      }
      next.emplace_back(byte, static_cast<uint32_t>(nodes_.size()));
      node = nodes_.size();
      nodes_.emplace_back();
    }
    nodes_[node].token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
    starts_[static_cast<uint8_t>(token.content[0])] = true;
  }
  if (std::count(std::begin(starts_), std::end(starts_), true) == 1) {
    only_start_ = static_cast<int>(std::find(std::begin(starts_), std::end(starts_), true) - std::begin(starts_));
  }
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) {
    return {};
  }
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (only_start_ >= 0) {
      const void* const at = std::memchr(text.data() + begin, only_start_, text.size() - begin);
      if (at == nullptr) {
        break;
      }
      begin = static_cast<size_t>(static_cast<const char*>(at) - text.data());
    } else if (!starts_[static_cast<uint8_t>(text[begin])]) {
      continue;
    }
    Match match;
    size_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto& next = nodes_[node].next;
      const auto byte = static_cast<uint8_t>(text[i]);
      const auto at = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == byte; });
      if (at == next.end()) {
        break;
      }
      node = at->second;
      if (nodes_[node].token >= 0) {
        match = {begin, i + 1 - begin, nodes_[node].token};
      }
    }
    if (match.token >= 0) {
      return match;
    }
  }
  return {};
}

std::pair<size_t, size_t> AddedTokenFinder::widen(
    std::string_view text, const Match& match, size_t begin, size_t& spaces_end) const {
  const CodePoints& table = CodePoints::get();
  const auto is_space = [&](DecodedChar c) { return table.kind(c.code) == CharKind::space; };
  const char* const text_end = text.data() + text.size();
  const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
  size_t first = match.begin;
  size_t last = match.begin + match.size;
  if (token.lstrip) {
    while (first > begin) {
      size_t previous = first - 1;
      while (previous > begin && (static_cast<uint8_t>(text[previous]) & 0xC0) == 0x80) {
        --previous;
      }
      const DecodedChar c = decode_utf8(text.data() + previous, text_end);
      if (!is_space(c) || previous + c.size != first) {
        break;
      }
      first = previous;
    }
    first = std::max(first, begin);  // the previous token may have included this very token
  }
  if (token.rstrip) {
    last = std::max(last, spaces_end);  // found before, which keeps the work linear
    while (last < text.size()) {
      const DecodedChar c = decode_utf8(text.data() + last, text_end);
      if (!is_space(c)) {
        break;
      }
      last += c.size;
    }
    spaces_end = last;
  }
  return {first, last};
}

}  // namespace lehr::data

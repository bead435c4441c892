// Added tokens: strings that are matched in text before any other rule, such as "<|im_start|>".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lehr::data {

/// One entry of `added_tokens` in tokenizer.json, under its names in that file.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;     ///< Omitted by decode with skip_special.
  bool lstrip = false;      ///< Includes preceding white space.
  bool rstrip = false;      ///< Includes following white space.
  bool normalized = false;  ///< Matched after normalization, not before.
};

/// Finds added tokens in text: leftmost first, and the longest of those that begin at the same position.
class AddedTokenFinder {
 public:
  /// Tokens with empty content are ignored.
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  /// A part of the text: an added token, or the text between two of them (id -1). A token in the white space that the
  /// token before it includes is a part of its own, and the next part begins at its end.
  struct Part {
    std::string_view text;
    int32_t id;
  };

  /// Calls `sink(part)` for all non-empty parts in order.
  template <class Sink>
  void split(std::string_view text, const Sink& sink) const {
    size_t begin = 0, spaces_end = 0;
    for (size_t from = 0; from < text.size();) {
      const Match match = find(text, from);
      if (match.token < 0) {
        break;
      }
      const auto [first, last] = widen(text, match, begin, spaces_end);
      if (begin < first) {
        sink(Part{text.substr(begin, first - begin), -1});
      }
      const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
      if (first < last || !token.lstrip) {  // else all of it belongs to the previous token
        sink(Part{text.substr(first, last - first), token.id});
      }
      begin = token.lstrip ? std::max(first, last) : last;
      from = match.begin + match.size;
    }
    if (begin < text.size()) {
      sink(Part{text.substr(begin), -1});
    }
  }

 private:
  struct Match {
    size_t begin = 0;
    size_t size = 0;
    int32_t token = -1;
  };
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  // few entries: searched linearly
    int32_t token = -1;
  };

  /// Returns the first match at or after `from`; token -1 if there is none.
  Match find(std::string_view text, size_t from) const;
  /// Returns where the match begins and ends with the white space that its token includes, to the left not before
  /// `begin`, the end of the previous part. As in `tokenizers`, it may begin, and even end, before `begin` if the
  /// previous token included its white space.
  /// `spaces_end` is the end of the white space that a token has included, 0 before the first; it is updated.
  std::pair<size_t, size_t> widen(std::string_view text, const Match& match, size_t begin, size_t& spaces_end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; the first is the root
  bool starts_[256] = {};    // first bytes of tokens
  int only_start_ = -1;      // the only first byte, if there is just one
};

}  // namespace lehr::data

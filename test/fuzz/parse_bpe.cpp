// Byte-pair encoding against a plain definition: the input makes a vocabulary and merges of few letters, and a text.
#include <algorithm>
#include <vector>

#include "lehr/data/bpe.h"
#include "test/fuzz/harness.h"

namespace {
using lehr::data::Bpe;

struct Merge {
  int32_t left, right, merged;
};

// Applies the first merge of the list that fits, at its first place, until none fits. Of equal pairs the last counts.
std::vector<int32_t> plain(std::vector<int32_t> ids, const std::vector<Merge>& merges) {
  for (;;) {
    bool changed = false;
    for (size_t rank = 0; rank < merges.size() && !changed; ++rank) {
      const Merge& merge = merges[rank];
      const bool repeated =
          std::any_of(merges.begin() + static_cast<std::ptrdiff_t>(rank) + 1, merges.end(), [&](const Merge& later) {
            return later.left == merge.left && later.right == merge.right;
          });
      for (size_t i = 0; !repeated && i + 1 < ids.size(); ++i) {
        if (ids[i] == merge.left && ids[i + 1] == merge.right) {
          ids[i] = merge.merged;
          ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          changed = true;
          break;
        }
      }
    }
    if (!changed) {
      return ids;
    }
  }
}
}  // namespace

// Two bytes choose a pair of known tokens, whose sum becomes a token and a merge; after a zero byte follows the text.
void lehr::fuzz::read_input(std::string_view input) {
  auto [pairs, text] = cut(input);
  std::vector<std::string> tokens;
  data::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.add(vocabulary.spell(static_cast<uint8_t>(byte)), byte);
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  data::Merges merges;
  std::vector<Merge> list;
  for (size_t i = 0; i + 1 < pairs.size() && list.size() < 64; i += 2) {
    const auto pick = [&](char c) { return static_cast<size_t>(static_cast<uint8_t>(c)) * 7 % tokens.size(); };
    const size_t left = pick(pairs[i]), right = pick(pairs[i + 1]);
    const std::string sum = tokens[left] + tokens[right];
    if (sum.size() > 200) {
      continue;
    }
    int32_t merged = vocabulary.find(sum);
    if (merged < 0) {
      merged = static_cast<int32_t>(tokens.size());
      std::string spelling;
      for (const char c : sum) {
        spelling += vocabulary.spell(static_cast<uint8_t>(c));
      }
      if (!vocabulary.add(spelling, merged)) {
        broken("a new token was refused");
      }
      tokens.push_back(sum);
    }
    list.push_back({static_cast<int32_t>(left), static_cast<int32_t>(right), merged});
    merges.add(list.back().left, list.back().right, merged);
  }
  const Bpe bpe(std::move(vocabulary), std::move(merges), {}, "model");
  text = text.substr(0, 512);
  std::vector<int32_t> bytes;
  for (const char c : text) {
    bytes.push_back(static_cast<uint8_t>(c));
  }
  const std::vector<int32_t> expected = plain(bytes, list);
  for (int again = 0; again < 2; ++again) {  // the second time it may be remembered
    std::vector<int32_t> ids;
    bpe.encode_word(text, ids);
    if (ids != expected) {
      broken("the ids differ from the plain definition's");
    }
  }
}

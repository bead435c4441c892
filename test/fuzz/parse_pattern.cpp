// Patterns of pre-tokenizers: the input is a pattern, a zero byte, and a text. Isolated pieces are the text again, and
// the scanners cut valid text as the regular expressions do.
#include <simdjson.h>

#include "lehr/data/pretokenize.h"
#include "test/fuzz/harness.h"

namespace {
std::string join(const lehr::data::Splitter& splitter, std::string_view text, std::string_view between) {
  std::string all;
  splitter.split(text, [&](std::string_view piece) {
    if (piece.empty()) {
      lehr::fuzz::broken("an empty piece");
    }
    all.append(piece).append(between);
  });
  return all;
}
}  // namespace

void lehr::fuzz::read_input(std::string_view input) {
  using data::SplitBehavior;
  const auto parts = cut(input);
  const std::string_view pattern = parts.first, text = parts.second;
  accepts([&] {
    const auto splitter =
        data::make_regex_splitter(std::string(pattern), false, SplitBehavior::isolated, false, "pattern");
    if (join(*splitter, text, "") != text) {
      broken("the pieces are not the text");
    }
  });
  for (const auto behavior :
       {SplitBehavior::removed,
        SplitBehavior::merged_with_previous,
        SplitBehavior::merged_with_next,
        SplitBehavior::contiguous}) {
    accepts([&] {
      const bool literal = pattern.size() % 2 == 0, invert = text.size() % 2 == 0;
      const auto splitter = data::make_regex_splitter(std::string(pattern), literal, behavior, invert, "pattern");
      join(*splitter, text, "");
    });
  }
  static const auto scanner = data::make_scanner(data::kGpt2Pattern);
  if (join(*scanner, text, "") != text) {
    broken("the pieces of the scanner are not the text");
  }
}

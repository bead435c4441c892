#include "lehr/data/lone_surrogates.h"

#include <fmt/format.h>

#include <charconv>

namespace lehr::data {

namespace {
// The code unit of the escape "\uXXXX" at `at`; 0, which is no surrogate, if there is none.
uint32_t unit_at(const std::string& text, size_t at) {
  uint32_t unit = 0;
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') {
    return 0;
  }
  const char* const end = text.data() + at + 6;
  return std::from_chars(end - 4, end, unit, 16).ptr == end ? unit : 0;
}
}  // namespace

bool LoneSurrogates::replace(std::string& json, const std::string& file, int64_t line) {
  bool found = false;
  // Backslashes occur in strings only; an escaped one hides what follows it.
  for (size_t at = json.find('\\'); at != std::string::npos; at = json.find('\\', at)) {
    const uint32_t unit = unit_at(json, at);
    const bool is_first = unit >= 0xD800 && unit <= 0xDBFF;
    const bool is_second = unit >= 0xDC00 && unit <= 0xDFFF;
    const uint32_t next = is_first ? unit_at(json, at + 6) : 0;
    if (is_first && next >= 0xDC00 && next <= 0xDFFF) {
      at += 12;
      continue;
    }
    if (is_first || is_second) {
      json.replace(at, 6, "\\ufffd");
      found = true;
    }
    at += 2;
  }
  if (found && texts_++ == 0) {
    first_ = fmt::format("{}:{}", file, line);
  }
  return found;
}

std::string LoneSurrogates::report() const {
  return texts_ == 0
             ? ""
             : fmt::format(
                   "{}: {} with half of a surrogate pair (such as \"\\ud83d\"), which is not a character: read as "
                   "U+FFFD",
                   first_,
                   texts_ == 1 ? "a text" : fmt::format("the first of {} texts", texts_));
}

}  // namespace lehr::data

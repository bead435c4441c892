#include "lehr/data/compose.h"

#include <algorithm>
#include <utility>

#include "lehr/data/unicode_tables.h"

namespace lehr::data {
namespace {

// Hangul syllables are computed according to the Unicode standard, section 3.12.
constexpr uint32_t kSyllable = 0xAC00;
constexpr uint32_t kLead = 0x1100;
constexpr uint32_t kVowel = 0x1161;
constexpr uint32_t kTail = 0x11A7;  // "no tail"; the first real tail follows
constexpr uint32_t kLeads = 19;
constexpr uint32_t kVowels = 21;
constexpr uint32_t kTails = 28;

uint8_t combining_class(uint32_t code) {
  const auto after = std::upper_bound(
      kCombiningClasses.begin(), kCombiningClasses.end(), code, [](uint32_t value, const CombiningRange& range) {
        return value < range.first;
      });
  return after != kCombiningClasses.begin() && code <= after[-1].last ? after[-1].combining_class : uint8_t{0};
}

// Returns the composite of a pair, or 0.
uint32_t compose_pair(uint32_t first, uint32_t second) {
  if (first >= kLead && first < kLead + kLeads && second >= kVowel && second < kVowel + kVowels) {
    return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  }
  if (first >= kSyllable && first < kSyllable + kLeads * kVowels * kTails && (first - kSyllable) % kTails == 0 &&
      second > kTail && second < kTail + kTails) {
    return first + (second - kTail);
  }
  const auto at = std::lower_bound(
      kCompositions.begin(),
      kCompositions.end(),
      std::pair(first, second),
      [](const Composition& row, const auto& pair) { return std::pair(row.first, row.second) < pair; });
  return at != kCompositions.end() && at->first == first && at->second == second ? at->composite : 0;
}

}  // namespace

void append_decomposed(uint32_t code, std::vector<Mark>& out) {
  const auto push = [&](uint32_t part) { out.push_back({part, combining_class(part)}); };
  if (code >= kSyllable && code < kSyllable + kLeads * kVowels * kTails) {
    const uint32_t index = code - kSyllable;
    push(kLead + index / (kVowels * kTails));
    push(kVowel + index % (kVowels * kTails) / kTails);
    if (index % kTails != 0) {
      push(kTail + index % kTails);
    }
    return;
  }
  const auto at = std::lower_bound(
      kDecompositions.begin(), kDecompositions.end(), code, [](const Decomposition& row, uint32_t value) {
        return row.code < value;
      });
  if (at == kDecompositions.end() || at->code != code) {
    push(code);
    return;
  }
  for (uint32_t part : at->parts) {
    if (part != 0) {
      push(part);
    }
  }
}

void reorder(std::vector<Mark>& marks) {
  const auto is_starter = [](const Mark& m) { return m.combining_class == 0; };
  for (auto begin = marks.begin(); begin != marks.end();) {
    begin = std::find_if_not(begin, marks.end(), is_starter);
    const auto end = std::find_if(begin, marks.end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    begin = end;
  }
}

void compose(std::vector<Mark>& marks) {
  size_t kept = 0;
  size_t starter = SIZE_MAX;  // index of the last starter kept
  int last_class = -1;        // class of the last mark kept after it; -1: none
  for (size_t i = 0; i < marks.size(); ++i) {
    const Mark mark = marks[i];
    if (starter != SIZE_MAX && last_class < mark.combining_class) {
      if (const uint32_t composite = compose_pair(marks[starter].code, mark.code)) {
        marks[starter].code = composite;
        continue;
      }
    }
    if (mark.combining_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = mark.combining_class;
    }
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

std::vector<uint32_t> codes_that_need_nfc() {
  std::vector<uint32_t> codes;
  for (const CombiningRange& range : kCombiningClasses) {
    for (uint32_t code = range.first; code <= range.last; ++code) {
      codes.push_back(code);
    }
  }
  for (const Composition& row : kCompositions) {
    codes.push_back(row.second);
  }
  for (uint32_t i = 0; i < kVowels; ++i) {
    codes.push_back(kVowel + i);
  }
  for (uint32_t i = 1; i < kTails; ++i) {
    codes.push_back(kTail + i);
  }
  std::vector<Mark> marks;
  for (const Decomposition& row : kDecompositions) {
    marks.clear();
    append_decomposed(row.code, marks);
    reorder(marks);
    compose(marks);
    if (marks.size() != 1 || marks[0].code != row.code) {
      codes.push_back(row.code);
    }
  }
  return codes;
}

}  // namespace lehr::data

// Canonical decomposition, ordering and composition of code points (Unicode 9, sections 3.11 and 3.12), the steps of
// NFC.
#pragma once

#include <cstdint>
#include <vector>

namespace lehr::data {

/// A code point with its canonical combining class; class 0 is a starter.
struct Mark {
  uint32_t code;
  uint8_t combining_class;
};

/// Appends the canonical decomposition of a code point, which is itself if it has none.
void append_decomposed(uint32_t code, std::vector<Mark>& out);

/// Canonical ordering: sorts each run of non-starters stably by class.
void reorder(std::vector<Mark>& marks);

/// Canonical composition, in place.
void compose(std::vector<Mark>& marks);

/// Returns the code points that NFC changes, reorders or may combine with a preceding character; all others are
/// boundaries.
std::vector<uint32_t> codes_that_need_nfc();

}  // namespace lehr::data

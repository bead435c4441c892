// Declarations of the generated Unicode tables for unicode.cpp and normalize.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace lehr::data {

/// Code points first..last, inclusive.
struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

/// Code points with one non-zero canonical combining class.
struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t combining_class;
};

/// The full canonical decomposition of one code point, terminated by zero if shorter than four.
struct Decomposition {
  uint32_t code;
  uint32_t parts[4];
};

/// `first` followed by `second` composes to `composite` in NFC.
struct Composition {
  uint32_t first;
  uint32_t second;
  uint32_t composite;
};

// All are sorted by their leading members.
extern const std::span<const CodePointRange> kLetters;
extern const std::span<const CodePointRange> kNumbers;
extern const std::span<const CodePointRange> kSpaces;
extern const std::span<const CombiningRange> kCombiningClasses;
extern const std::span<const Decomposition> kDecompositions;
extern const std::span<const Composition> kCompositions;

}  // namespace lehr::data

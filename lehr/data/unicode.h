// UTF-8 decoding, and the character class of code points for pre-tokenizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data {

/// The result of `decode_utf8` for invalid UTF-8. It is not a code point.
inline constexpr uint32_t kInvalidCode = 0x110000;

/// A decoded character.
struct DecodedChar {
  uint32_t code;  ///< The code point, or kInvalidCode.
  uint32_t size;  ///< Size in bytes, 1 to 4; of invalid UTF-8 its maximal subpart, which one U+FFFD replaces.
};

/// Decodes the character at `at`, which must be before `end`. Accepts exactly well-formed UTF-8.
inline DecodedChar decode_utf8(const char* at, const char* end) {
  const auto byte = [&](ptrdiff_t i) { return i < end - at ? static_cast<uint8_t>(at[i]) : uint8_t{0}; };
  const auto continues = [](uint32_t b) { return (b & 0xC0) == 0x80; };
  const uint32_t b0 = byte(0);
  if (b0 < 0x80) {
    return {b0, 1};
  }
  const uint32_t b1 = byte(1);
  if (b0 < 0xE0) {
    return b0 >= 0xC2 && continues(b1) ? DecodedChar{(b0 & 0x1F) << 6 | (b1 & 0x3F), 2} : DecodedChar{kInvalidCode, 1};
  }
  // The range of the second byte rules out overlong forms, surrogates and code points above U+10FFFF.
  const uint32_t low = b0 == 0xE0 ? 0xA0 : b0 == 0xF0 ? 0x90 : 0x80;
  const uint32_t high = b0 == 0xED ? 0x9F : b0 == 0xF4 ? 0x8F : 0xBF;
  if (b0 > 0xF4 || b1 < low || b1 > high) {
    return {kInvalidCode, 1};
  }
  const uint32_t b2 = byte(2);
  if (!continues(b2)) {
    return {kInvalidCode, 2};
  }
  if (b0 < 0xF0) {
    return {(b0 & 0x0F) << 12 | (b1 & 0x3F) << 6 | (b2 & 0x3F), 3};
  }
  const uint32_t b3 = byte(3);
  if (!continues(b3)) {
    return {kInvalidCode, 3};
  }
  return {(b0 & 0x07) << 18 | (b1 & 0x3F) << 12 | (b2 & 0x3F) << 6 | (b3 & 0x3F), 4};
}

/// Appends `code` (a code point) as UTF-8.
void append_utf8(std::string& out, uint32_t code);

/// Returns `bytes` with each maximal subpart of invalid UTF-8 replaced by U+FFFD, as Rust's `String::from_utf8_lossy`
/// does.
std::string replace_invalid_utf8(std::string bytes);

/// \p{L}, \p{N}, \s of the `tokenizers` package (Unicode 16), or none of them.
enum class CharKind : uint8_t { other, letter, number, space };

/// The class of every code point, and whether NFC may change it, in two table look-ups.
class CodePoints {
 public:
  /// Returns the only instance, which is built on first use and never changed.
  static const CodePoints& get();

  CharKind kind(uint32_t code) const { return static_cast<CharKind>(entry(code) & 3); }
  /// Returns true for code points that NFC changes or may combine with a preceding character.
  bool needs_nfc(uint32_t code) const { return (entry(code) & 4) != 0; }

 private:
  CodePoints();
  uint8_t entry(uint32_t code) const { return blocks_[block_of_[code >> 8]][code & 0xFF]; }

  struct Block {
    uint8_t entries[256];
    uint8_t operator[](uint32_t i) const { return entries[i]; }
  };
  std::vector<uint16_t> block_of_;  // one entry more than needed for U+10FFFF, so that kInvalidCode is "other"
  std::vector<Block> blocks_;
};

}  // namespace lehr::data

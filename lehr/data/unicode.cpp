// The two-stage code point table, built from the generated ranges, and the replacement of invalid UTF-8.
#include "lehr/data/unicode.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "lehr/data/compose.h"
#include "lehr/data/unicode_tables.h"

namespace lehr::data {

void append_utf8(std::string& out, uint32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string replace_invalid_utf8(std::string bytes) {
  if (simdjson::validate_utf8(bytes)) {
    return bytes;
  }
  std::string out;
  out.reserve(bytes.size() + 16);
  const char* const end = bytes.data() + bytes.size();
  for (const char* at = bytes.data(); at < end;) {
    const DecodedChar c = decode_utf8(at, end);
    if (c.code == kInvalidCode) {
      out += "\xEF\xBF\xBD";
    } else {
      out.append(at, c.size);
    }
    at += c.size;
  }
  return out;
}

CodePoints::CodePoints() {
  std::vector<uint8_t> flat(kInvalidCode + 256, 0);
  const auto mark = [&](std::span<const CodePointRange> ranges, CharKind kind) {
    for (const CodePointRange& range : ranges) {
      std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, static_cast<uint8_t>(kind));
    }
  };
  mark(kLetters, CharKind::letter);
  mark(kNumbers, CharKind::number);
  mark(kSpaces, CharKind::space);
  for (uint32_t code : codes_that_need_nfc()) {
    flat[code] |= 4;
  }
  std::map<std::array<uint8_t, 256>, uint16_t> seen;  // equal blocks are stored once
  for (size_t begin = 0; begin < flat.size(); begin += 256) {
    std::array<uint8_t, 256> entries;
    std::copy_n(flat.begin() + static_cast<ptrdiff_t>(begin), 256, entries.begin());
    const auto [at, is_new] = seen.emplace(entries, static_cast<uint16_t>(blocks_.size()));
    if (is_new) {
      std::memcpy(blocks_.emplace_back().entries, entries.data(), 256);
    }
    block_of_.push_back(at->second);
  }
}

const CodePoints& CodePoints::get() {
  static const CodePoints instance;
  return instance;
}

}  // namespace lehr::data

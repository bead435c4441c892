// A quick check, then decomposition, reordering and composition of the few ranges that need it.
#include "lehr/data/normalize.h"

#include <cstring>

#include "lehr/data/compose.h"
#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

// Returns the first non-ASCII byte at or after `at`.
const char* skip_ascii(const char* at, const char* end) {
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    if (word & 0x8080808080808080u) {
      break;
    }
  }
  while (at < end && static_cast<uint8_t>(*at) < 0x80) {
    ++at;
  }
  return at;
}

/// Returns the first character at or after `at` that needs NFC, or `end`. Sets `boundary` to the character before it
/// (or to `at`): that one may combine with it, but nothing before can.
const char* find_unsafe(const CodePoints& table, const char* at, const char* end, const char*& boundary) {
  boundary = at;
  while (true) {
    const char* const ascii_end = skip_ascii(at, end);
    if (ascii_end != at) {
      boundary = ascii_end - 1;
      at = ascii_end;
    }
    if (at == end) {
      return end;
    }
    const DecodedChar c = decode_utf8(at, end);
    if (table.needs_nfc(c.code)) {
      return at;
    }
    boundary = at;
    at += c.size;
  }
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  const CodePoints& table = CodePoints::get();
  const char* const end = text.data() + text.size();
  const char* boundary = nullptr;
  const char* unsafe = find_unsafe(table, text.data(), end, boundary);
  if (unsafe == end) {
    return text;
  }
  buffer.clear();
  buffer.reserve(text.size() + text.size() / 8 + 16);
  const char* copied = text.data();
  std::vector<Mark> marks;
  while (unsafe != end) {
    buffer.append(copied, boundary);
    // The range to normalize: the boundary character, and all up to the next character that does not combine.
    marks.clear();
    const char* at = boundary;
    if (boundary != unsafe) {
      const DecodedChar c = decode_utf8(at, end);
      if (c.code == kInvalidCode) {
        buffer.append(boundary, unsafe);
      } else {
        append_decomposed(c.code, marks);
      }
      at = unsafe;
    }
    while (at < end) {
      const DecodedChar c = decode_utf8(at, end);
      if (!table.needs_nfc(c.code)) {
        break;
      }
      append_decomposed(c.code, marks);
      at += c.size;
    }
    reorder(marks);
    compose(marks);
    for (const Mark& mark : marks) {
      append_utf8(buffer, mark.code);
    }
    copied = at;
    unsafe = find_unsafe(table, at, end, boundary);
  }
  buffer.append(copied, end);
  return buffer;
}

}  // namespace lehr::data

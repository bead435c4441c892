#include "lehr/base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace lehr {

std::string printable(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    // U+0080 to U+009F in UTF-8: terminals may read U+009B as the start of a command.
    const bool c1 = byte == 0xC2 && i + 1 < text.size() && (static_cast<uint8_t>(text[i + 1]) & 0xE0) == 0x80;
    if (c1) {
      safe += fmt::format("\\x{:02X}", static_cast<uint8_t>(text[++i]));
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      safe += fmt::format("\\x{:02X}", byte);
    } else {
      safe += text[i];
    }
  }
  return safe;
}

}  // namespace lehr

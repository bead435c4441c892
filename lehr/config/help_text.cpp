#include "lehr/config/help_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace lehr {

std::string wrapped_help(std::string_view help) {
  constexpr size_t kWidth = 92;
  std::string text;
  while (!help.empty()) {
    size_t cut = help.size() <= kWidth ? help.size() : help.rfind(' ', kWidth);
    cut = cut == std::string_view::npos ? help.find(' ') : cut;
    cut = std::min(cut, help.size());
    text += fmt::format("      {}\n", help.substr(0, cut));
    help.remove_prefix(std::min(cut + 1, help.size()));
  }
  return text;
}

}  // namespace lehr

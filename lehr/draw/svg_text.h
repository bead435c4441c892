// Formatting of numbers and text for SVG.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// A pixel coordinate with at most two decimals and no trailing zeros.
std::string pixel(double value);

/// Escapes the five characters that XML reserves and removes control characters.
std::string xml_text(std::string_view text);

}  // namespace lehr

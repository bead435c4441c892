// Numbers and texts as SVG wants them.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// A pixel coordinate: two decimals, no needless zeros.
std::string pixel(double value);

/// `text` with the five characters that XML reserves replaced, and control characters left out.
std::string xml_text(std::string_view text);

}  // namespace lehr

// Text of somebody else on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// Returns `text` with control characters other than newline and tab as \x1B and the like, since names in a downloaded
/// file could move the cursor, change the window's title, or hide what is printed. UTF-8 stays, except C1 controls.
std::string printable(std::string_view text);

}  // namespace lehr

// Untrusted text, made safe to print on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// Returns `text` with control characters other than newline and tab escaped, as \x1B: names in a downloaded file could
/// move the cursor, change the window's title, or hide other output. UTF-8 is unchanged, except for C1 controls.
std::string printable(std::string_view text);

}  // namespace lehr

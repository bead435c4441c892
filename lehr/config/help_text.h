// Help texts of options and config keys, wrapped for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// Returns `help` in lines of at most 98 columns, indented by six spaces, each with a newline. A longer word has a line
/// of its own.
std::string wrapped_help(std::string_view help);

}  // namespace lehr

// Appending of whole lines to a file that is read while it grows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lehr::metric {

/// Appends all of `text` to the open file, or nothing. On failure returns the reason, such as "No space left on
/// device".
std::optional<std::string> append_whole(int file, std::string_view text);

}  // namespace lehr::metric

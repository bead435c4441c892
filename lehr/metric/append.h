// Appending to a file that people read while it grows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lehr::metric {

/// Appends all of `text` to the open file, or nothing of it: then says why (as "No space left on device").
std::optional<std::string> append_whole(int file, std::string_view text);

}  // namespace lehr::metric

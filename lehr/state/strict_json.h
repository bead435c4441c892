// JSON of checkpoint files: duplicate names are an error, since readers that take the last (or the first) of them would
// load different data. For .cpp files only: it includes nlohmann's header.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace lehr::state {

/// Parses JSON whose outermost value must be an object, with at most `max_depth` levels of objects and lists. Messages
/// begin with `subject` and end with `advice`.
nlohmann::json parse_strict_json(
    std::string_view text, const std::string& subject, int max_depth, const std::string& advice);

}  // namespace lehr::state

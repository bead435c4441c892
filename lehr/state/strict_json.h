// JSON of checkpoint files: names that occur twice are an error, since a reader that takes the last (or the first) of
// them would load something else than the next reader. For .cpp files only: it brings in nlohmann's header.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace lehr::state {

/// Parses JSON whose outermost value must be an object, with at most `max_depth` levels of objects and lists. `subject`
/// begins every message; `advice` ends it.
nlohmann::json parse_strict_json(
    std::string_view text, const std::string& subject, int max_depth, const std::string& advice);

}  // namespace lehr::state

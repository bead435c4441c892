// JSON of checkpoint files: duplicate names are an error, since readers that take the last (or the first) of them would
// load different data. For .cpp files only: it includes nlohmann's header.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace lehr::state {

/// The most entries of the outermost object, the longest name, and the most values of one entry. The largest published
/// models have 200,000 tensors.
inline constexpr size_t kMostJsonEntries = 1'000'000;
inline constexpr size_t kLongestJsonName = 2048;
inline constexpr size_t kMostJsonValues = 1'000'000;

/// Parses JSON whose outermost value must be an object, with at most `max_depth` levels of objects and lists, and calls
/// `take` for each of its entries, which are never all in memory. Throws usage errors that begin with `subject` and end
/// with `advice`, also for more or longer entries than the limits above.
void for_each_json_entry(
    std::string_view text,
    const std::string& subject,
    int max_depth,
    const std::string& advice,
    const std::function<void(const std::string& name, nlohmann::json&& value)>& take);

/// The same, with all entries as one object.
nlohmann::json parse_strict_json(
    std::string_view text, const std::string& subject, int max_depth, const std::string& advice);

}  // namespace lehr::state

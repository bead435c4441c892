// The word that a user probably meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lehr {

/// Number of insertions, deletions, changes and swaps of neighbours that turn one word into the other (optimal string
/// alignment).
int64_t edit_distance(std::string_view a, std::string_view b);

/// The nearest of `known`, if it is near enough to be meant.
std::optional<std::string> suggest(std::string_view word, const std::vector<std::string>& known);

}  // namespace lehr

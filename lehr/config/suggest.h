// Suggestions for misspelled words.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lehr {

/// Number of insertions, deletions, substitutions and transpositions of neighbours between two words (optimal string
/// alignment distance).
int64_t edit_distance(std::string_view a, std::string_view b);

/// Returns the closest of `known`, if it is close enough to be a misspelling or an abbreviation.
std::optional<std::string> suggest(std::string_view word, const std::vector<std::string>& known);

}  // namespace lehr

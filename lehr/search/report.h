// The report of a search for people, and search.json for tools.
#pragma once

#include <filesystem>

namespace lehr::search {

class Search;

/// Writes report.md with its pictures (pareto.svg and .html, scores.svg, teacher.svg, child.svg) and search.json to
/// `folder`.
void write_search_report(const Search& search, const std::filesystem::path& folder);

}  // namespace lehr::search

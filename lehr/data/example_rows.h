// What data of single texts, with labels or in pairs, has in common: its files, its JSON lines and the width of its
// batches.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/data/loader.h"
#include "lehr/data/sample_order.h"

namespace lehr::data {

/// Returns the file `path`, whatever its name is, or the files of a folder or a pattern (TextSource).
std::vector<std::filesystem::path> example_files(const std::filesystem::path& path);

/// Parses a JSON line, which `parser` owns. `repair` may change a line with invalid escapes, and returns whether it
/// did. Throws a usage error that begins with `where` if the line is not valid JSON.
simdjson::dom::element parse_row(
    simdjson::dom::parser& parser,
    std::string_view line,
    const std::string& where,
    const std::function<bool(std::string& json)>& repair);

/// Returns the width of a step's batch: the longest sequence of all ranks (`length_of` a sample), rounded up to
/// `multiple`, but at most `most`.
int64_t padded_width(
    const SampleOrder& order,
    const BatchPlan& plan,
    int64_t step,
    int64_t multiple,
    int64_t most,
    const std::function<int64_t(int64_t sample)>& length_of);

}  // namespace lehr::data

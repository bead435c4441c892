// The common part of datasets of labelled texts and of pairs: their files, their JSON lines and the width of a batch.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/data/byte_source.h"
#include "lehr/data/loader.h"
#include "lehr/data/lone_surrogates.h"
#include "lehr/data/sample_order.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Returns the file `path`, whatever its name is, or the files of a folder or a pattern (TextSource). Throws a usage
/// error for a .csv, which says how to convert it.
std::vector<std::filesystem::path> example_files(const std::filesystem::path& path);

/// Throws a usage error that begins with `path` unless both are at least 1.
void check_lengths(const std::filesystem::path& path, int64_t max_length, int64_t pad_to_multiple_of);

/// Labels are 0, 1, ..., below this.
constexpr int64_t kMostLabels = 1'000'000;

/// A line of a file of examples, valid until the next one.
struct ExampleLine {
  std::string_view text;
  std::string where;  ///< "file:line", for messages.
  /// May change JSON with invalid escapes, and returns whether it did.
  std::function<bool(std::string& json)> repair;
};

/// Calls `take` with each line that is not empty, without its end. Lone surrogates that are replaced are counted in
/// `lone_surrogates`. Throws a usage error for a line that is not UTF-8.
void read_example_lines(
    std::unique_ptr<ByteSource> source,
    const std::filesystem::path& file,
    LoneSurrogates& lone_surrogates,
    const std::function<void(const ExampleLine&)>& take);

/// Parses a JSON line, which `parser` owns. Throws a usage error that begins with its place if it is not valid JSON.
simdjson::dom::element parse_row(simdjson::dom::parser& parser, const ExampleLine& line);

/// Returns the ids of a text with the special tokens around them. Of a text that is longer than `max_length` with
/// these, the end is left out. Throws a usage error that begins with `where` if `max_length` leaves no room for the
/// text.
std::vector<int32_t> with_special_tokens(
    std::vector<int32_t> ids, const SpecialTokens& special, int64_t max_length, const std::string& where);

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

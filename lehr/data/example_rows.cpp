#include "lehr/data/example_rows.h"

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/data/corpus.h"
#include "lehr/data/text_source.h"

namespace lehr::data {

std::vector<std::filesystem::path> example_files(const std::filesystem::path& path) {
  std::error_code unreadable;
  const bool compressed = path.extension() == ".gz" || path.extension() == ".zst";
  require(
      (compressed ? path.stem() : path).extension() != ".csv" || std::filesystem::is_directory(path, unreadable),
      "{}: .csv files are not read; expected JSON lines (.jsonl) or tables (.parquet, .arrow). Convert the file, for "
      "example with pandas: pandas.read_csv(\"{}\").to_json(\"{}\", orient=\"records\", lines=True)",
      path.string(),
      path.filename().string(),
      (compressed ? path.stem() : path).stem().string() + ".jsonl");
  return std::filesystem::is_regular_file(path, unreadable) ? std::vector{path} : list_files({.path = path});
}

void check_lengths(const std::filesystem::path& path, int64_t max_length, int64_t pad_to_multiple_of) {
  require(
      max_length > 0 && pad_to_multiple_of > 0,
      "{}: max_length is {} and pad_to_multiple_of {}, but both must be at least 1",
      path.string(),
      max_length,
      pad_to_multiple_of);
}

void read_example_lines(
    std::unique_ptr<ByteSource> source,
    const std::filesystem::path& file,
    LoneSurrogates& lone_surrogates,
    const std::function<void(const ExampleLine&)>& take) {
  LineReader lines(std::move(source));
  for (std::string_view line; lines.next(line);) {
    require_utf8(line, file.string(), lines.line_number());
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    line = without_byte_order_mark(line, lines.line_number());
    if (line.empty()) {
      continue;
    }
    take({line, fmt::format("{}:{}", file.string(), lines.line_number()), [&](std::string& json) {
            return lone_surrogates.replace(json, file.string(), lines.line_number());
          }});
  }
}

simdjson::dom::element parse_row(simdjson::dom::parser& parser, const ExampleLine& line) {
  simdjson::dom::element value;
  auto error = parser.parse(line.text.data(), line.text.size()).get(value);
  if (std::string changed(line.text); error == simdjson::STRING_ERROR && line.repair(changed)) {
    error = parser.parse(changed).get(value);
  }
  require(
      error == simdjson::SUCCESS,
      "{}: not valid JSON ({}); expected one JSON object per line, or a table (.parquet, .arrow)",
      line.where,
      simdjson::error_message(error));
  return value;
}

std::vector<int32_t> with_special_tokens(
    std::vector<int32_t> ids, const SpecialTokens& special, int64_t max_length, const std::string& where) {
  const auto most = static_cast<size_t>(max_length);
  require(
      special.size() < most,
      "{}: max_length: expected more than the {} special tokens around a text, found {}",
      where,
      special.size(),
      max_length);
  ids.resize(std::min(ids.size(), most - special.size()));
  return special.around(ids);
}

int64_t padded_width(
    const SampleOrder& order,
    const BatchPlan& plan,
    int64_t step,
    int64_t multiple,
    int64_t most,
    const std::function<int64_t(int64_t sample)>& length_of) {
  int64_t width = 1;
  const auto size = plan.rows_of(order.size());
  for (int64_t row = 0; row < plan.global_batch_size; ++row) {
    const int64_t index = plan.first_sample(step) + row;
    if (!size || index < *size) {
      width = std::max(width, length_of(order.at(index).sample));
    }
  }
  return std::min((width + multiple - 1) / multiple * multiple, most);
}

}  // namespace lehr::data

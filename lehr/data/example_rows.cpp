#include "lehr/data/example_rows.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/data/text_source.h"

namespace lehr::data {

std::vector<std::filesystem::path> example_files(const std::filesystem::path& path) {
  std::error_code unreadable;
  return std::filesystem::is_regular_file(path, unreadable) ? std::vector{path} : list_files({.path = path});
}

simdjson::dom::element parse_row(
    simdjson::dom::parser& parser,
    std::string_view line,
    const std::string& where,
    const std::function<bool(std::string& json)>& repair) {
  simdjson::dom::element value;
  auto error = parser.parse(line.data(), line.size()).get(value);
  if (std::string changed(line); error == simdjson::STRING_ERROR && repair(changed)) {
    error = parser.parse(changed).get(value);
  }
  require(error == simdjson::SUCCESS, "{}: not valid JSON ({})", where, simdjson::error_message(error));
  return value;
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

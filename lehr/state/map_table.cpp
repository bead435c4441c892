// Formats state maps as text.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "lehr/state/bound_map.h"

namespace lehr::state {

namespace {
constexpr size_t kColumns = 5;  // stored name, its shape, operations, parameter, its shape
using Row = std::array<std::string, kColumns>;

std::string shape_text(const TensorSpec& spec) {
  return spec.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(spec.shape, " x "));
}

// Lists the operations of a group, each once, with its count.
std::string operations_of(const BoundMap& map, const StateGroup& group) {
  std::vector<std::pair<std::string, size_t>> operations;
  for (const size_t i : group.steps) {
    const std::string text = describe(map.map().steps()[i].op);
    const auto same = [&](const auto& operation) { return operation.first == text; };
    if (const auto found = std::find_if(operations.rbegin(), operations.rend(), same); found != operations.rend()) {
      ++found->second;
    } else {
      operations.emplace_back(text, 1);
    }
  }
  std::string all;
  for (const auto& [text, times] : operations) {
    all += fmt::format("{}{}{}", all.empty() ? "" : ", ", text, times > 1 ? fmt::format(" ({} times)", times) : "");
  }
  if (all.empty()) {
    all = group.inputs == group.outputs ? "as it is" : "rename";
  }
  return all;
}

class Table {
 public:
  explicit Table(const BoundMap& map) : map_(map) {
    for (const MapPort& port : map.map().inputs()) {
      values_.emplace(port.name, port.value);
    }
  }

  void add(const StateGroup& group, size_t rows) {
    const size_t count = std::max(group.inputs.size(), group.outputs.size());
    for (size_t i = 0; i < count; ++i) {
      if (count > rows && i + 1 == rows) {
        rows_.push_back({fmt::format("... {} more", count - rows), "", "", "", ""});
        i = count - 1;
      }
      Row row{};
      if (i < group.inputs.size()) {
        row[0] = group.inputs[i];
        const TensorSpec& spec = map_.spec(values_.at(group.inputs[i]));
        row[1] = fmt::format("{} {}", dtype_name(spec.dtype), shape_text(spec));
      }
      if (i == 0) {
        row[2] = operations_of(map_, group);
      }
      if (i < group.outputs.size()) {
        const size_t value = map_.output_value(group.outputs[i]);
        row[3] = group.outputs[i];
        row[4] = shape_text(map_.spec(value));
        if (map_.known(value) != whole_box(map_.spec(value).shape)) {
          row[4] += ", of which " + describe(map_.known(value));
        }
      }
      rows_.push_back(std::move(row));
    }
  }

  std::string text() const {
    std::array<size_t, kColumns> widths{};
    for (const Row& row : rows_) {
      for (size_t i = 0; i < kColumns; ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string all;
    for (const Row& row : rows_) {
      std::string line;
      for (size_t i = 0; i < kColumns; ++i) {
        line += fmt::format("{:<{}}  ", row[i], widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      all += line + "\n";
    }
    return all;
  }

 private:
  const BoundMap& map_;
  std::unordered_map<std::string, size_t> values_;
  std::vector<Row> rows_;
};
}  // namespace

std::string format_table(const BoundMap& map, const MapTableOptions& options) {
  Table table(map);
  for (const StateGroup& group : map.map().groups()) {
    table.add(group, std::max<size_t>(options.rows_per_group, 3));
  }
  return table.text();
}

}  // namespace lehr::state

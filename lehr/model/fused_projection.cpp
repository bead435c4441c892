#include "lehr/model/fused_projection.h"

#include <numeric>

namespace lehr::model {

namespace {
std::vector<Range> rows_by_group(const std::vector<int64_t>& rows_of_group, int64_t num_groups) {
  std::vector<Range> rows;
  for (int64_t group = 0; group < num_groups; ++group) {
    int64_t first = 0;  // row of this projection
    for (const int64_t count : rows_of_group) {
      rows.push_back({first + group * count, first + (group + 1) * count});
      first += num_groups * count;
    }
  }
  return rows;
}
}  // namespace

state::StateMap fused_projection(
    const std::vector<StoredProjections>& stored, const std::string& name, int64_t num_groups) {
  std::vector<std::string> names;
  std::vector<int64_t> sizes, rows_of_group;
  for (const auto& [own, rows] : stored) {
    names.push_back(own);
    sizes.push_back(num_groups * std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    rows_of_group.insert(rows_of_group.end(), rows.begin(), rows.end());
  }
  const std::vector<Range> rows = rows_by_group(rows_of_group, num_groups);
  if (names.size() == 1) {
    return state::reorder(names.front(), name, 0, rows);
  }
  const std::string joined = name + " by projection";
  return state::sequential({state::concatenate(names, joined, 0, sizes), state::reorder(joined, name, 0, rows)});
}

}  // namespace lehr::model

#include "lehr/pipeline/balance.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::pipeline {

namespace {
constexpr int64_t kImpossible = std::numeric_limits<int64_t>::max();

// Costs as integers, so that equal stages compare equal. The whole model costs 2^30, whose square fits into int64_t.
class Stages {
 public:
  Stages(const PartCosts& costs, int64_t num_stages) : last_(num_stages - 1) {
    const double total = std::accumulate(costs.layers.begin(), costs.layers.end(), costs.before + costs.after);
    const double unit = total > 0 ? total / static_cast<double>(int64_t{1} << 30) : 1;
    const auto whole = [&](double cost) { return std::llround(cost / unit); };
    before_ = whole(costs.before);
    after_ = whole(costs.after);
    sums_.push_back(0);
    for (const double cost : costs.layers) {
      sums_.push_back(sums_.back() + whole(cost));
    }
  }
  int64_t num_layers() const { return static_cast<int64_t>(sums_.size()) - 1; }
  int64_t num_stages() const { return last_ + 1; }
  // Returns the cost of `stage` with the layers [begin, end).
  int64_t cost(int64_t stage, int64_t begin, int64_t end) const {
    return sums_[static_cast<size_t>(end)] - sums_[static_cast<size_t>(begin)] + (stage == 0 ? before_ : 0) +
           (stage == last_ ? after_ : 0);
  }

 private:
  int64_t last_;
  int64_t before_ = 0, after_ = 0;
  std::vector<int64_t> sums_;  // prefix sums of the layers' costs
};

// Indexed by stage and its first layer: the lowest value of this and all later stages, and the stage's layers then.
struct Table {
  std::vector<std::vector<int64_t>> value, layers;
};

// Dynamic programming from the last stage to the first. `joined` combines the cost of a stage with the value of the
// stages after it.
template <class Joined>
Table best_of(const Stages& stages, const Joined& joined) {
  const int64_t n = stages.num_layers();
  const std::vector<std::vector<int64_t>> empty(
      static_cast<size_t>(stages.num_stages() + 1), std::vector<int64_t>(static_cast<size_t>(n + 1), kImpossible));
  Table table{.value = empty, .layers = empty};
  table.value.back().back() = 0;
  for (int64_t stage = stages.num_stages() - 1; stage >= 0; --stage) {
    const auto& later = table.value[static_cast<size_t>(stage + 1)];
    for (int64_t begin = 0; begin < n; ++begin) {
      int64_t& value = table.value[static_cast<size_t>(stage)][static_cast<size_t>(begin)];
      for (int64_t end = n; end > begin; --end) {
        const int64_t rest = later[static_cast<size_t>(end)];
        const int64_t whole = rest == kImpossible ? kImpossible : joined(stages.cost(stage, begin, end), rest);
        if (whole < value) {
          value = whole;
          table.layers[static_cast<size_t>(stage)][static_cast<size_t>(begin)] = end - begin;
        }
      }
    }
  }
  return table;
}
}  // namespace

std::vector<int64_t> balance_layers(const PartCosts& costs, int64_t num_stages) {
  const Stages stages(costs, num_stages);
  require(
      num_stages >= 1 && stages.num_layers() >= num_stages,
      "pipeline stages: {} layers cannot be spread over {} stages with at least one layer each; use fewer stages",
      stages.num_layers(),
      num_stages);
  // Two passes: the first finds the lowest possible cost of the most expensive stage, the second the most even
  // distribution within that bound.
  const Table most_expensive = best_of(stages, [](int64_t cost, int64_t rest) { return std::max(cost, rest); });
  const int64_t bound = most_expensive.value.front().front();
  const Table even =
      best_of(stages, [&](int64_t cost, int64_t rest) { return cost > bound ? kImpossible : rest + cost * cost; });
  std::vector<int64_t> layers;
  size_t begin = 0;
  for (size_t stage = 0; stage < static_cast<size_t>(num_stages); ++stage) {
    layers.push_back(even.layers[stage][begin]);
    begin += static_cast<size_t>(layers.back());
  }
  return layers;
}

std::string describe_layers(const std::vector<int64_t>& layers_by_stage) {
  std::vector<std::string> words;
  for (size_t first = 0; first < layers_by_stage.size();) {
    size_t end = first;
    while (end < layers_by_stage.size() && layers_by_stage[end] == layers_by_stage[first]) {
      ++end;
    }
    words.push_back(
        end - first > 1 ? fmt::format("{} x {}", end - first, layers_by_stage[first])
                        : std::to_string(layers_by_stage[first]));
    first = end;
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace lehr::pipeline

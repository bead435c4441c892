#include "test/train/pairs.h"

#include <algorithm>
#include <cstdio>

#include "lehr/base/error.h"

namespace lehr::train::testing {

Pairs::Pairs(const Composition& rules, int64_t part, int64_t parts) : rules_(rules) {
  const auto& all = rules.features();
  int64_t number = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      const FeatureSet both{all[i].name, all[j].name};
      if (rules.can_meet(both) && number++ % parts == part) {
        numbers_.emplace(both, pairs_.size());
        pairs_.push_back({both, rules.refuses(both)});
      }
    }
  }
}

int64_t Pairs::left() const {
  return std::count_if(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return !pair.covered; });
}

std::vector<FeatureSet> Pairs::uncovered() const {
  std::vector<FeatureSet> found;
  for (const Pair& pair : pairs_) {
    if (!pair.covered) {
      found.push_back(pair.features);
    }
  }
  return found;
}

// Those of the features that are refused for this reason, or not at all.
std::vector<size_t> Pairs::uncovered_of(const FeatureSet& features, const Reason* refused_for) const {
  std::vector<size_t> found;
  for (auto one = features.begin(); one != features.end(); ++one) {
    for (auto other = std::next(one); other != features.end(); ++other) {
      const auto pair = numbers_.find({*one, *other});
      if (pair != numbers_.end() && !pairs_[pair->second].covered && pairs_[pair->second].refused_for == refused_for) {
        found.push_back(pair->second);
      }
    }
  }
  return found;
}

std::vector<size_t> Pairs::expected(const FeatureSet& features) const {
  return uncovered_of(features, rules_.refuses(features));
}

void Pairs::cover(const FeatureSet& features, const Reason* refused_for) {
  for (const size_t number : uncovered_of(features, refused_for)) {
    pairs_[number].covered = true;
  }
}

std::vector<int64_t> choose_draws(
    const Pairs& pairs, const std::vector<FeatureSet>& pool, const std::set<int64_t>& used) {
  std::vector<std::vector<size_t>> covers(pool.size());
  for (size_t i = 0; i < pool.size(); ++i) {
    covers[i] = used.contains(static_cast<int64_t>(i)) ? std::vector<size_t>{} : pairs.expected(pool[i]);
  }
  std::vector<int64_t> chosen;
  std::set<size_t> covered;
  while (true) {
    size_t best = 0;
    for (size_t i = 0; i < covers.size(); ++i) {
      std::erase_if(covers[i], [&](size_t pair) { return covered.contains(pair); });
      best = covers[i].size() > covers[best].size() ? i : best;
    }
    if (covers.empty() || covers[best].empty()) {
      return chosen;
    }
    chosen.push_back(static_cast<int64_t>(best));
    covered = {covers[best].begin(), covers[best].end()};
  }
}

std::vector<Part> part_of_pairs(std::string_view text) {
  if (text == "pairs") {
    return {{}};
  }
  if (!text.starts_with("pairs:")) {
    return {};
  }
  long long number = 0, of = 0;
  const bool two = std::sscanf(std::string(text).c_str(), "pairs:%lld/%lld", &number, &of) == 2;
  require(
      two && 1 <= number && number <= of,
      "LEHR_DRAWS: expected pairs, or pairs:K/N with K from 1 to N, found {}",
      text);
  return {{.number = number, .of = of}};
}

}  // namespace lehr::train::testing

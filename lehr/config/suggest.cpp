#include "lehr/config/suggest.h"

#include <algorithm>
#include <cstdint>

namespace lehr {

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int64_t>> cost(a.size() + 1, std::vector<int64_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = static_cast<int64_t>(i + j);
        continue;
      }
      cost[i][j] =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

namespace {
// True if `word` is `full` without some letters inside, and at least half of it: num_kv_heads of num_key_value_heads.
bool abbreviates(std::string_view word, std::string_view full) {
  constexpr size_t kFewest = 6;  // fewer letters abbreviate too many words
  if (word.size() < kFewest || 2 * word.size() < full.size() || word.front() != full.front() ||
      word.back() != full.back()) {
    return false;
  }
  size_t found = 0;
  for (const char letter : full) {
    found += found < word.size() && word[found] == letter ? 1 : 0;
  }
  return found == word.size();
}
}  // namespace

std::optional<std::string> suggest(std::string_view word, const std::vector<std::string>& known) {
  std::optional<std::string> best;
  int64_t best_distance = 0;
  for (const auto& candidate : known) {
    // Missing letters, however many, cost less than wrong ones.
    const int64_t distance = abbreviates(word, candidate) ? 1 : edit_distance(word, candidate);
    // Up to a third of the word may differ; a word that is a prefix of the other is also close.
    const auto limit = std::max<int64_t>(2, static_cast<int64_t>(std::max(word.size(), candidate.size())) / 3);
    if (distance <= limit && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace lehr

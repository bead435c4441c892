// Tests of many combinations run a part of them by default, and all of them with LEHR_ALL_MESHES=1.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace lehr::test {

/// Whether tests run all combinations, which takes minutes: LEHR_ALL_MESHES=1.
inline bool all_meshes() {
  return std::getenv("LEHR_ALL_MESHES") != nullptr;
}

/// Every `step`-th entry of a list, from number `first` on; with LEHR_ALL_MESHES=1 the whole list.
template <typename T>
std::vector<T> every_nth(size_t step, const std::vector<T>& list, size_t first = 0) {
  if (all_meshes()) {
    return list;
  }
  std::vector<T> chosen;
  for (size_t i = first; i < list.size(); i += step) {
    chosen.push_back(list[i]);
  }
  return chosen;
}

}  // namespace lehr::test

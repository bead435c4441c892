// The part of a search's work that one of several ranks does.
#pragma once

#include <cstdint>

namespace lehr::search {

/// The work of rank `rank` of `ranks`; all of it by default.
struct WorkShare {
  int64_t rank = 0;
  int64_t ranks = 1;

  /// A share without any work.
  static WorkShare none() { return {.rank = -1}; }

  /// Returns whether the rank does piece `index` of `count`. Its pieces are consecutive; all ranks have about as many.
  bool has(int64_t index, int64_t count) const { return index * ranks / count == rank; }
};

}  // namespace lehr::search

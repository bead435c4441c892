// The one order of data: which sample of which dataset stands at a global index, as a pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/base/random.h"

namespace lehr::data {

/// Mixes datasets and shuffles each. The answer for an index depends on the constructor's arguments and the index
/// alone: nothing is drawn, so nothing has to be saved, and resuming costs nothing.
///
/// Repeating: dataset d gets its weight's share of every stretch of indices, exact to within the number of datasets;
/// when its samples are used up it starts over, in another order (its next epoch). Not repeating: every sample of every
/// dataset comes exactly once, and the datasets are mixed evenly by their sizes.
class SampleOrder {
 public:
  struct Dataset {
    int64_t size = 0;
    double weight = 1.0;  ///< Only looked at when repeating.
  };
  struct Options {
    uint64_t seed = 0;
    bool shuffle = true;
    bool repeat = true;
  };
  SampleOrder(std::vector<Dataset> datasets, Options options);

  struct Place {
    int64_t dataset = 0;
    int64_t sample = 0;
    int64_t epoch = 0;
  };
  /// What stands at `index`, which must be in [0, size()) when not repeating.
  Place at(int64_t index) const;

  /// The number of indices; nothing when repeating.
  std::optional<int64_t> size() const;

 private:
  struct Share {
    int64_t size;
    uint64_t part;   // this dataset's part...
    uint64_t whole;  // ...of what the datasets before it left
    uint64_t phase;  // in [0, whole)
    RandomStream keys;
  };
  std::vector<Share> shares_;
  Options options_;
  int64_t total_ = 0;
};

}  // namespace lehr::data

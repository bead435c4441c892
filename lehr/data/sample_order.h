// The global order of data: the dataset and sample of each global index, as a pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/base/random.h"

namespace lehr::data {

/// Mixes datasets and shuffles each. The answer for an index depends on the constructor's arguments and the index
/// alone: nothing is drawn, so nothing has to be saved, and resuming costs nothing.
///
/// With repeat, dataset d gets its weight's share of every range of indices, exact to within the number of datasets;
/// when its samples are used up, it starts over in another order (its next epoch). Without repeat, every sample of
/// every dataset occurs exactly once, and the datasets are mixed evenly by their sizes.
class SampleOrder {
 public:
  struct Dataset {
    int64_t size = 0;
    double weight = 1.0;  ///< Used only with repeat.
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
  /// Returns the sample at `index`, which must be in [0, size()) without repeat.
  Place at(int64_t index) const;

  /// Returns the number of indices; nothing with repeat.
  std::optional<int64_t> size() const;

 private:
  struct Share {
    int64_t size;
    uint64_t part;   // share of this dataset: part / whole...
    uint64_t whole;  // ...of the indices that the datasets before it left
    uint64_t phase;  // in [0, whole)
    RandomStream keys;
  };
  std::vector<Share> shares_;
  Options options_;
  int64_t total_ = 0;
};

}  // namespace lehr::data

// Mixing by integer arithmetic, shuffling by permutation.
#include "lehr/data/sample_order.h"

#include <cmath>

#include "lehr/base/error.h"
#include "lehr/data/permutation.h"

namespace lehr::data {
namespace {

__extension__ using Uint128 = unsigned __int128;

/// Returns how many of the first `count` indices belong to a dataset with this share: floor(count * part / whole +
/// phase).
int64_t taken(int64_t count, uint64_t part, uint64_t whole, uint64_t phase) {
  return static_cast<int64_t>((static_cast<Uint128>(count) * part + phase) / whole);
}

}  // namespace

SampleOrder::SampleOrder(std::vector<Dataset> datasets, Options options) : options_(options) {
  require(!datasets.empty(), "data: no dataset was given");
  double weights = 0;
  for (const Dataset& dataset : datasets) {
    require(dataset.size > 0, "data: a dataset has no samples");
    require(
        dataset.weight > 0 && std::isfinite(dataset.weight),
        "data: a dataset has the weight {}, expected more than 0",
        dataset.weight);
    weights += dataset.weight;
    total_ += dataset.size;
  }
  uint64_t left = 0;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const Dataset& dataset = datasets[i];
    const uint64_t part =
        options.repeat ? std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(dataset.weight / weights * 0x1p32)))
                       : static_cast<uint64_t>(dataset.size);
    shares_.push_back({dataset.size, part, 0, 0, RandomStream(options.seed, fmt::format("data.order.{}", i))});
    left += part;
  }
  const RandomStream phases(options.seed, "data.mixture");
  for (size_t i = 0; i < shares_.size(); ++i) {
    shares_[i].whole = left;
    shares_[i].phase = options.shuffle ? phases.bits(i) % left : 0;
    left -= shares_[i].part;
  }
}

SampleOrder::Place SampleOrder::at(int64_t index) const {
  require(
      index >= 0 && (options_.repeat || index < total_),
      "data: sample {} was requested, but there are {}",
      index,
      total_);
  // Each dataset takes its share of the indices that earlier datasets left; `index` counts the remaining ones.
  size_t dataset = 0;
  for (;; ++dataset) {
    const Share& share = shares_[dataset];
    const int64_t before = taken(index, share.part, share.whole, share.phase);
    if (taken(index + 1, share.part, share.whole, share.phase) > before) {
      index = before;
      break;
    }
    index -= before;  // the last dataset takes all remaining indices, so the loop ends there
  }
  const Share& share = shares_[dataset];
  Place place{.dataset = static_cast<int64_t>(dataset), .sample = index % share.size, .epoch = index / share.size};
  if (options_.shuffle) {
    place.sample = Permutation(share.size, share.keys.bits(static_cast<uint64_t>(place.epoch)))(place.sample);
  }
  return place;
}

std::optional<int64_t> SampleOrder::size() const {
  return options_.repeat ? std::nullopt : std::optional(total_);
}

}  // namespace lehr::data

// The places of a launch: the process slots of this machine, each with its GPU, and which of them are still used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lehr::app {

/// All places of a launch. The ranks of a start are in the first places that are left.
class LaunchPlaces {
 public:
  explicit LaunchPlaces(int64_t count);

  /// Number of places that are left.
  int64_t left() const { return static_cast<int64_t>(left_.size()); }
  /// The place of a rank of the current start.
  int64_t of(int64_t rank) const;
  /// Remembers that the rank was the cause of a failure. At the second failure of one place the place is given up, and
  /// the result is true. A place is never given up if it is the last one.
  bool failed(int64_t rank);
  /// Value of CUDA_VISIBLE_DEVICES for `ranks` ranks, given its present value (null: not set): the devices of their
  /// places, so that the GPU of a place that was given up is not used. Returns an empty text if it need not change:
  /// while all places are left, and where the list has fewer devices than the launch had places.
  std::string visible_devices(int64_t ranks, const std::string* present) const;

 private:
  int64_t count_;
  std::vector<int64_t> left_;
  std::map<int64_t, int64_t> failures_;
};

}  // namespace lehr::app

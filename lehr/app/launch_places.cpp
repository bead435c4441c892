#include "lehr/app/launch_places.h"

#include <fmt/ranges.h>

#include <numeric>
#include <sstream>

namespace lehr::app {

namespace {
constexpr int64_t kFailuresToGiveUp = 2;
}  // namespace

LaunchPlaces::LaunchPlaces(int64_t count) : count_(count), left_(static_cast<size_t>(count)) {
  std::iota(left_.begin(), left_.end(), int64_t{0});
}

int64_t LaunchPlaces::of(int64_t rank) const {
  return left_.at(static_cast<size_t>(rank));
}

bool LaunchPlaces::failed(int64_t rank) {
  if (++failures_[of(rank)] < kFailuresToGiveUp || left_.size() == 1) {
    return false;
  }
  left_.erase(left_.begin() + rank);
  return true;
}

std::string LaunchPlaces::visible_devices(int64_t ranks, const std::string* present) const {
  if (left() == count_) {
    return "";
  }
  std::vector<std::string> devices;
  if (present == nullptr) {
    for (int64_t place = 0; place < count_; ++place) {
      devices.push_back(std::to_string(place));
    }
  } else {
    std::istringstream list(*present);
    for (std::string device; std::getline(list, device, ',');) {
      devices.push_back(device);
    }
  }
  if (static_cast<int64_t>(devices.size()) < count_) {
    return "";
  }
  std::vector<std::string> used;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    used.push_back(devices[static_cast<size_t>(of(rank))]);
  }
  return fmt::format("{}", fmt::join(used, ","));
}

}  // namespace lehr::app

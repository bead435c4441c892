#include "lehr/pipeline/timeline.h"

#include <algorithm>
#include <numeric>

namespace lehr::pipeline {

namespace {
double waiting_share(const std::vector<double>& busy, double step) {
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  return step > 0 ? 1 - sum / (static_cast<double>(busy.size()) * step) : 0;
}
}  // namespace

double Timeline::bubble_share() const {
  return waiting_share(busy, makespan);
}

double Timeline::bubble_share_without_barrier() const {
  double longest = 0;
  for (size_t rank = 0; rank < busy.size(); ++rank) {
    longest = std::max(longest, last_end[rank] - first_start[rank]);
  }
  return waiting_share(busy, longest + update);
}

std::vector<double> Timeline::peak_memory() const {
  std::vector<double> peaks;
  for (const auto& points : memory) {
    double peak = 0;
    for (const MemoryPoint& point : points) {
      peak = std::max(peak, point.bytes);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace lehr::pipeline

#include "lehr/plan/goodput.h"

#include <algorithm>
#include <cmath>

#include "lehr/base/value_of.h"

namespace lehr::plan {

double FailureModel::goodput(double interval) const {
  // A failure after x seconds leaves floor((x - writing) / period) durable intervals; the mean over exponential x is a
  // geometric series.
  const double period = interval + blocked;
  const double kept = interval * std::exp(-writing / mtbf) / std::expm1(period / mtbf);
  return kept / (mtbf + restart);
}

double FailureModel::best_interval() const {
  // The derivative of interval / expm1(period / mtbf) vanishes where interval = mtbf (1 - exp(-period / mtbf)). The
  // right side starts higher and grows more slowly, so bisection finds the only root.
  double low = 0;
  double high = mtbf;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (middle < -mtbf * std::expm1(-(middle + blocked) / mtbf) ? low : high) = middle;
  }
  return std::max(low, writing);
}

FailureModel failure_model(const Machine& machine, int64_t devices, double checkpoint_bytes, bool asynchronous) {
  const double hours = value_of(machine.device_mtbf_hours, "machine.device_mtbf_hours");
  const double copy = checkpoint_bytes / (machine.host_gb_per_second * 1e9);
  const double write = checkpoint_bytes / (machine.storage_gb_per_second * 1e9);
  return {
      .mtbf = hours * 3600 / static_cast<double>(devices),
      .blocked = asynchronous ? copy : copy + write,
      .writing = asynchronous ? write : 0,
      .restart = machine.restart_seconds};
}

}  // namespace lehr::plan

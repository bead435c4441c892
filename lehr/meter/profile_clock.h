// Clocks of an operator profile: the host's clock, or events in the work queue of a device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// Marks moments in the work of one thread, and later returns the time between them.
class ProfileClock {
 public:
  virtual ~ProfileClock() = default;
  /// Starts an interval on the calling thread's current stream. Earlier marks stay valid.
  virtual void start() = 0;
  /// Adds a mark after all work that was enqueued so far, and returns its index, from 0.
  virtual size_t mark() = 0;
  /// Returns when all marks were reached.
  virtual void wait() = 0;
  /// Returns the time from one mark to a later one. Both must have been reached, and must belong to the same start().
  virtual double seconds(size_t begin, size_t end) const = 0;
};

/// Returns the host's clock for a CPU, whose work is done when an operator returns. For an accelerator returns events
/// of the current stream: the host does not wait for them, and time in which the device idles because the host is late
/// belongs to the next operator.
std::unique_ptr<ProfileClock> profile_clock(at::Device device);

/// Returns a clock of work that is done when an operator returns; `now` returns the time in seconds.
std::unique_ptr<ProfileClock> profile_clock(std::function<double()> now);

}  // namespace lehr

#include "lehr/meter/profile_clock.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "lehr/base/value_of.h"

namespace lehr {

namespace {
class HostClock : public ProfileClock {
 public:
  explicit HostClock(std::function<double()> now) : now_(std::move(now)) {}

  void start() override {}
  size_t mark() override {
    marks_.push_back(now_());
    return marks_.size() - 1;
  }
  void wait() override {}
  double seconds(size_t begin, size_t end) const override { return marks_[end] - marks_[begin]; }

 private:
  std::function<double()> now_;
  std::vector<double> marks_;
};

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class DeviceClock : public ProfileClock {
 public:
  explicit DeviceClock(at::Device device) : device_(device), devices_(device.type()) {}

  void start() override { stream_ = devices_.getStream(device_); }

  // All events are on one stream: work of other streams counts where this one waits for it.
  size_t mark() override {
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // LibTorch's default records no times
    events_.back().record(value_of(stream_, "profile clock: the stream that start() takes"));
    return events_.size() - 1;
  }

  void wait() override {
    if (!events_.empty()) {
      events_.back().synchronize();
    }
  }

  double seconds(size_t begin, size_t end) const override { return 1e-3 * events_[begin].elapsedTime(events_[end]); }

 private:
  at::Device device_;
  c10::impl::VirtualGuardImpl devices_;
  std::optional<c10::Stream> stream_;
  std::vector<c10::Event> events_;
};
}  // namespace

std::unique_ptr<ProfileClock> profile_clock(at::Device device) {
  if (device.is_cpu()) {
    return profile_clock(steady_seconds);
  }
  return std::make_unique<DeviceClock>(device);
}

std::unique_ptr<ProfileClock> profile_clock(std::function<double()> now) {
  return std::make_unique<HostClock>(std::move(now));
}

}  // namespace lehr

#include "lehr/emulate/recording.h"

#include <algorithm>
#include <utility>

namespace lehr::emulate {

Recorder::Recorder() = default;
Recorder::~Recorder() = default;

void Recorder::begin() {
  recording_ = {};
  meter_ = std::make_unique<OperationMeter>();
}

Recording Recorder::end() {
  add({.kind = EventKind::compute});
  meter_.reset();
  return std::exchange(recording_, {});
}

// Appends the work since the last event, if there was any, and then `event`.
void Recorder::add(const Event& event) {
  const OperationCounts& work = meter_->counts();
  if (work.flops() > 0 || work.pointwise_bytes > 0) {
    recording_.events.push_back({.kind = EventKind::compute, .work = work});
    meter_->reset();
  }
  if (event.kind != EventKind::compute) {
    recording_.events.push_back(event);
  }
}

size_t Recorder::start(const Channel& channel, const std::string& collective, int64_t bytes) {
  if (!meter_) {
    return kNotRecorded;
  }
  auto& channels = recording_.channels;
  const auto found = std::find(channels.begin(), channels.end(), channel);
  const auto number = static_cast<size_t>(found - channels.begin());
  if (found == channels.end()) {
    channels.push_back(channel);
  }
  const size_t call = recording_.calls.size();
  recording_.calls.push_back({.channel = number, .collective = collective, .bytes = bytes});
  add({.kind = EventKind::start, .call = call});
  return call;
}

void Recorder::wait(size_t call) {
  if (meter_ && call != kNotRecorded) {
    add({.kind = EventKind::wait, .call = call});
  }
}

void Recorder::action_ended(const pipeline::Action& action) {
  if (meter_) {
    add({.kind = EventKind::action, .action = action});
  }
}

}  // namespace lehr::emulate

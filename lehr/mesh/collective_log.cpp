#include "lehr/mesh/collective_log.h"

#include <fmt/format.h>

#include <algorithm>

namespace lehr::mesh {

std::string CollectiveRecord::describe() const {
  return number == 0 ? fmt::format("{} on axis {}", name, axis)
                     : fmt::format("{} number {} on axis {}", name, number, axis);
}

CollectiveLog::CollectiveLog(size_t capacity) : ring_(capacity) {}

size_t CollectiveLog::add_group(const std::string& axis, const std::string& key) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({.key = key});
  axes_.push_back(axis);
  return groups_.size() - 1;
}

int64_t CollectiveLog::begin(size_t group, const char* name, int64_t bytes, bool counted) {
  const std::lock_guard lock(mutex_);
  GroupCount& seen = groups_[group];
  if (counted) {
    ++seen.started;
    seen.last = name;
    seen.last_bytes = bytes;
  }
  CollectiveRecord& record = ring_[static_cast<size_t>(next_) % ring_.size()];
  record.name = name;
  record.group = group;
  record.axis = axes_[group];
  record.number = counted ? seen.started : 0;
  record.bytes = bytes;
  record.start = CollectiveRecord::Clock::now();
  record.end.reset();
  return next_++;
}

// Null if later entries have overwritten it.
CollectiveRecord* CollectiveLog::entry(int64_t ticket) {
  const bool kept = ticket >= 0 && ticket < next_ && next_ - ticket <= static_cast<int64_t>(ring_.size());
  return kept ? &ring_[static_cast<size_t>(ticket) % ring_.size()] : nullptr;
}

void CollectiveLog::waits(int64_t ticket) {
  const std::lock_guard lock(mutex_);
  waited_for_ = ticket;
}

void CollectiveLog::end(int64_t ticket) {
  const std::lock_guard lock(mutex_);
  waited_for_ = -1;
  if (CollectiveRecord* const record = entry(ticket)) {
    record->end = CollectiveRecord::Clock::now();
  }
}

std::optional<CollectiveRecord> CollectiveLog::find(int64_t ticket) const {
  const std::lock_guard lock(mutex_);
  const CollectiveRecord* const record = const_cast<CollectiveLog*>(this)->entry(ticket);
  return record == nullptr ? std::nullopt : std::optional(*record);
}

std::vector<CollectiveRecord> CollectiveLog::recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<CollectiveRecord> result;
  const auto capacity = static_cast<int64_t>(ring_.size());
  for (int64_t ticket = std::max<int64_t>(0, next_ - capacity); ticket < next_; ++ticket) {
    result.push_back(ring_[static_cast<size_t>(ticket) % ring_.size()]);
  }
  return result;
}

std::vector<GroupCount> CollectiveLog::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

std::string CollectiveLog::text() const {
  using Seconds = std::chrono::duration<double>;
  const auto now = CollectiveRecord::Clock::now();
  std::string lines;
  for (const CollectiveRecord& record : recent()) {
    lines += fmt::format(
        "{:.3f} s ago: {}, {} bytes, {}\n",
        Seconds(now - record.start).count(),
        record.describe(),
        record.bytes,
        record.end ? fmt::format("{:.3f} s", Seconds(*record.end - record.start).count()) : "not finished");
  }
  return lines;
}

std::string CollectiveLog::where() const {
  const auto seconds_since = [](CollectiveRecord::Clock::time_point then) {
    return std::chrono::duration_cast<std::chrono::seconds>(CollectiveRecord::Clock::now() - then).count();
  };
  int64_t waited_for = -1;
  {
    const std::lock_guard lock(mutex_);
    waited_for = waited_for_;
  }
  if (const auto record = find(waited_for)) {
    return fmt::format("waits in {} for {} s", record->describe(), seconds_since(record->start));
  }
  const auto records = recent();
  if (records.empty()) {
    return "has not entered a collective yet";
  }
  const CollectiveRecord& last = records.back();
  return fmt::format(
      "is computing; its last collective was {}, {} s ago",
      last.describe(),
      seconds_since(last.end.value_or(last.start)));
}

}  // namespace lehr::mesh

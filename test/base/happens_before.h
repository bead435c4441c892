// The order of work and of memory accesses: vector clocks, as in race detectors, for streams to which a host submits
// work.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lehr::testing {

/// The host and the streams are timelines. Work of one timeline is in order. Work of a stream comes after everything
/// that the host knew to be done when it submitted that work, since the host submits in its own order. Any other order
/// needs a wait().
class HappensBefore {
 public:
  using Timeline = int64_t;
  static constexpr Timeline kHost = -1;
  /// How far each timeline had come, as known to one of them.
  using Clock = std::map<Timeline, int64_t>;
  using Memory = const void*;

  /// The clock of an event recorded behind the present work of a timeline.
  Clock mark(Timeline of) { return clocks_[of]; }
  /// All later work of the timeline comes after the event.
  void wait(Timeline of, const Clock& mark) { merge(clocks_[of], mark); }

  void read(Timeline by, Memory memory, const std::string& what) { access(by, memory, what, /*writes=*/false); }
  void write(Timeline by, Memory memory, const std::string& what) { access(by, memory, what, /*writes=*/true); }

  /// The memory returns to the pool of the stream that allocated it. That stream's next allocation may be the same
  /// memory, so it must come after all accesses.
  void free(Memory memory, Timeline pool) {
    const auto found = memory_.find(memory);
    if (found != memory_.end()) {
      for (const Access& access : found->second.all()) {
        freed_[pool].push_back(access);
      }
      memory_.erase(found);
    }
  }
  void allocate(Timeline pool) {
    merge(clocks_[pool], Clock(clocks_[kHost]));
    for (const Access& access : std::exchange(freed_[pool], {})) {
      if (!is_behind(clocks_[pool], access)) {
        problems_.push_back(fmt::format(
            "memory of {} on {} is used again by {}, which is not behind it",
            access.what,
            name(access.by),
            name(pool)));
      }
    }
  }

  /// Whether the timeline comes after all accesses of another one so far.
  bool is_behind_all(Timeline timeline, Timeline other) { return clocks_[timeline][other] >= clocks_[other][other]; }
  bool touched(Memory memory) const { return memory_.contains(memory); }
  /// One line for each pair of accesses that are not in order.
  const std::vector<std::string>& problems() const { return problems_; }
  void report(const std::string& problem) { problems_.push_back(problem); }
  static std::string name(Timeline timeline) {
    return timeline == kHost ? "the host" : fmt::format("stream {}", timeline);
  }

 private:
  struct Access {
    Timeline by = 0;
    int64_t count = 0;
    std::string what;
  };
  struct Accesses {
    std::optional<Access> write;
    std::map<Timeline, Access> reads;  // since the write
    std::vector<Access> all() const {
      std::vector<Access> list;
      if (write) {
        list.push_back(*write);
      }
      for (const auto& [timeline, access] : reads) {
        list.push_back(access);
      }
      return list;
    }
  };

  static void merge(Clock& into, const Clock& other) {
    for (const auto& [timeline, count] : other) {
      into[timeline] = std::max(into[timeline], count);
    }
  }
  static bool is_behind(const Clock& clock, const Access& access) {
    const auto found = clock.find(access.by);
    return found != clock.end() && found->second >= access.count;
  }

  void access(Timeline by, Memory memory, const std::string& what, bool writes) {
    Clock& clock = clocks_[by];
    merge(clock, Clock(clocks_[kHost]));
    Accesses& earlier = memory_[memory];
    const auto require_behind = [&](const Access& access) {
      if (!is_behind(clock, access)) {
        problems_.push_back(
            fmt::format("{} on {} is not behind {} on {}", what, name(by), access.what, name(access.by)));
      }
    };
    if (earlier.write) {
      require_behind(*earlier.write);
    }
    if (writes) {
      for (const auto& [timeline, access] : earlier.reads) {
        require_behind(access);
      }
    }
    const Access now{by, ++clock[by], what};
    if (writes) {
      earlier = {now, {}};
    } else {
      earlier.reads[by] = now;
    }
  }

  std::map<Timeline, Clock> clocks_;
  std::map<Memory, Accesses> memory_;
  std::map<Timeline, std::vector<Access>> freed_;  // by pool, since its last allocation
  std::vector<std::string> problems_;
};

}  // namespace lehr::testing

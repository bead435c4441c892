// A log of the last collectives of one rank, which is reported when something hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lehr::mesh {

/// One collective or point-to-point message of this rank.
struct CollectiveRecord {
  using Clock = std::chrono::steady_clock;
  const char* name = "";  ///< Such as "all_reduce"; a string with static lifetime.
  size_t group = 0;       ///< The number that add_group returned.
  std::string axis = "";
  /// Number of the collective within its group, from 1, the same on all members; 0 for send and receive.
  int64_t number = 0;
  int64_t bytes = 0;
  Clock::time_point start = {};
  std::optional<Clock::time_point> end = {};  ///< End of this rank's wait for it.

  /// "all_reduce number 17 on axis tp", "send on axis pp".
  std::string describe() const;
};

/// This rank's view of one group.
struct GroupCount {
  std::string key;        ///< Name of the group, the same on all members.
  int64_t started = 0;    ///< Collectives that this rank started.
  const char* last = "";  ///< Name of the last of them.
  int64_t last_bytes = 0;
};

/// A ring buffer of the last collectives. Thread-safe; an entry costs a lock and no allocation.
class CollectiveLog {
 public:
  explicit CollectiveLog(size_t capacity = 256);

  /// Registers a group; `key` is its name on all members. Returns the number to pass to `begin`.
  size_t add_group(const std::string& axis, const std::string& key);
  /// Returns the ticket of the collective. `counted`: true if all members take part, false for send and receive.
  int64_t begin(size_t group, const char* name, int64_t bytes, bool counted);
  /// Records that the rank now waits for this collective.
  void waits(int64_t ticket);
  void end(int64_t ticket);

  /// Returns the entry of a ticket; nullopt if it is no longer in the ring.
  std::optional<CollectiveRecord> find(int64_t ticket) const;
  /// The entries, oldest first.
  std::vector<CollectiveRecord> recent() const;
  std::vector<GroupCount> groups() const;
  /// The entries as text, one per line, oldest first: "12.031 s ago: all_reduce number 17 on axis tp, 4096 bytes, 0.002
  /// s", or "..., not finished".
  std::string text() const;
  /// Describes what the rank is doing: "waits in all_reduce number 17 on axis tp for 31 s", "is computing; its last
  /// collective was all_gather number 16 on axis tp, 31 s ago", "has not entered a collective yet".
  std::string where() const;

 private:
  CollectiveRecord* entry(int64_t ticket);

  mutable std::mutex mutex_;
  std::vector<CollectiveRecord> ring_;
  std::vector<GroupCount> groups_;
  std::vector<std::string> axes_;
  int64_t next_ = 0;
  int64_t waited_for_ = -1;
};

}  // namespace lehr::mesh

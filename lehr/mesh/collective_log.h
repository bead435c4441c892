// The last collectives of one rank: what it says when something hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lehr::mesh {

/// One collective or message of this rank.
struct CollectiveRecord {
  using Clock = std::chrono::steady_clock;
  const char* name = "";  ///< "all_reduce"; lives forever.
  size_t group = 0;       ///< As add_group gave it.
  std::string axis = "";
  /// Counts the collectives of the group from 1, the same on all of its members; 0 for send and receive.
  int64_t number = 0;
  int64_t bytes = 0;
  Clock::time_point start = {};
  std::optional<Clock::time_point> end = {};  ///< When the rank had waited for it.

  /// "all_reduce number 17 on axis tp", "send on axis pp".
  std::string describe() const;
};

/// What one group has seen.
struct GroupCount {
  std::string key;        ///< Names the group, the same on all members.
  int64_t started = 0;    ///< Collectives that this rank came to.
  const char* last = "";  ///< Name of the last of them.
  int64_t last_bytes = 0;
};

/// A ring of the last collectives. Safe to use from several threads; an entry costs a lock and no allocation.
class CollectiveLog {
 public:
  explicit CollectiveLog(size_t capacity = 256);

  /// Makes a group known; `key` names it on all members. Gives the number to pass to `begin`.
  size_t add_group(const std::string& axis, const std::string& key);
  /// Gives the ticket of the collective. `counted`: all members take part, as against send and receive.
  int64_t begin(size_t group, const char* name, int64_t bytes, bool counted);
  /// The rank waits for it, and nothing else.
  void waits(int64_t ticket);
  void end(int64_t ticket);

  /// Nothing if it is no longer in the ring.
  std::optional<CollectiveRecord> find(int64_t ticket) const;
  /// Oldest first.
  std::vector<CollectiveRecord> recent() const;
  std::vector<GroupCount> groups() const;
  /// What the rank does now: "waits in all_reduce number 17 on axis tp for 31 s", "computes; its last collective was
  /// all_gather number 16 on axis tp, 31 s ago", "has not come to a collective yet".
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

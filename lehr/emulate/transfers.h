// Transfers on shared links: channels, the calls on them, and the speed of those in flight.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <vector>

#include "lehr/emulate/recording.h"
#include "lehr/plan/links.h"

namespace lehr::emulate {

/// A call of all ranks of a channel.
struct Transfer {
  enum class State { expected, queued, latency, moving, done };

  size_t channel = 0;
  std::string collective;
  int64_t bytes = 0;
  size_t started = 0;  ///< Ranks that have started it.
  State state = State::expected;
  plan::LinkTime time = {};
  double begin = 0;  ///< Of the latency.
  double end = 0;
  double left = 0;  ///< Seconds of an idle link that the bytes still take.
};

/// All transfers of a replay, and the bandwidth that each gets of the links that it shares.
class Transfers {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  Transfers(int64_t num_ranks, const plan::Machine& machine);

  /// `rank` starts its next call of a channel at `now`. Returns the number of the transfer. Throws a runtime error if
  /// another rank has started another collective in its place.
  size_t start(int64_t rank, const Channel& channel, const Call& call, double now);
  const Transfer& at(size_t number) const { return all_[number]; }
  const Channel& channel_of(const Transfer& transfer) const { return *channels_[transfer.channel].channel; }
  const std::vector<Transfer>& all() const { return all_; }

  /// Returns the time of the next end of a latency or a transfer if the ranks continue as `computing` says.
  double next(double now, const std::vector<char>& computing) const;
  /// Moves the bytes from `now` to `until`, which is not after next(). Returns the transfers that have ended.
  std::vector<size_t> move(double now, double until, const std::vector<char>& computing);

 private:
  enum Link { node_out, node_in, network_out, network_in, kLinks };
  struct Queue {
    const Channel* channel = nullptr;
    plan::GroupPlacement placement = {};
    std::vector<size_t> transfers = {};         // in order
    size_t first = 0;                           // the first that has not ended
    std::map<int64_t, size_t> started_by = {};  // number of calls, by rank
  };

  void begin_first(size_t channel, double now);
  void finish(size_t number, double now, std::vector<size_t>& ended);
  template <class Do>
  void each_link(const Transfer& transfer, const Do& action) const;
  void share_links();
  double speed(size_t place, const std::vector<char>& computing) const;

  const plan::Machine& machine_;
  std::map<Channel, size_t> known_;
  std::vector<Queue> channels_;
  std::vector<Transfer> all_;
  std::vector<size_t> under_way_;                 // in latency or moving
  std::vector<double> share_;                     // of under_way_: the part of the speed that shared links leave
  std::vector<std::array<double, kLinks>> load_;  // by rank: the demand on its links, 1 for all of a link
};

}  // namespace lehr::emulate

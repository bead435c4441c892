#include "lehr/emulate/replay.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/emulate/transfers.h"

namespace lehr::emulate {

namespace {
constexpr double kNever = Transfers::kNever;

class Ranks {
 public:
  Ranks(
      const std::vector<Recording>& recordings,
      const std::vector<std::vector<double>>& seconds,
      const plan::Machine& machine)
      : recordings_(recordings),
        seconds_(seconds),
        transfers_(static_cast<int64_t>(recordings.size()), machine),
        ranks_(recordings.size()),
        computing_(recordings.size(), 0) {
    result_.ranks.resize(ranks_.size());
    result_.actions.resize(ranks_.size());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].transfer_of_call.resize(recordings[rank].calls.size());
    }
  }

  Replay run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      go_on(rank);
    }
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.done; })) {
      double until = transfers_.next(now_, computing_);
      for (const Rank& rank : ranks_) {
        until = std::min(until, rank.busy_until);
      }
      if (until == kNever) {
        fail_deadlock();
      }
      pass(until);
    }
    finish();
    return std::move(result_);
  }

 private:
  struct Rank {
    size_t next = 0;                     // event
    double busy_until = kNever;          // of the computation that runs
    std::optional<size_t> awaited = {};  // transfer
    double wait_begin = 0;
    bool in_action = false;  // has computed since the last action
    double action_begin = 0;
    bool done = false;
    std::vector<size_t> transfer_of_call = {};
  };

  // Advances a rank until it computes, waits or has ended. All of it happens now.
  void go_on(size_t number) {
    Rank& rank = ranks_[number];
    const Recording& recording = recordings_[number];
    for (; rank.next < recording.events.size(); ++rank.next) {
      const Event& event = recording.events[rank.next];
      switch (event.kind) {
        case EventKind::compute:
          if (const double seconds = seconds_[number][rank.next]; seconds > 0) {
            rank.busy_until = now_ + seconds;
            computing_[number] = 1;
            if (!rank.in_action) {
              rank.in_action = true;
              rank.action_begin = now_;
            }
            ++rank.next;
            return;
          }
          break;
        case EventKind::start: {
          const Call& call = recording.calls[event.call];
          rank.transfer_of_call[event.call] =
              transfers_.start(static_cast<int64_t>(number), recording.channels[call.channel], call, now_);
          break;
        }
        case EventKind::wait:
          if (const size_t awaited = rank.transfer_of_call[event.call];
              transfers_.at(awaited).state != Transfer::State::done) {
            rank.awaited = awaited;
            rank.wait_begin = now_;
            ++rank.next;
            return;
          }
          break;
        case EventKind::action:
          result_.actions[number].push_back({event.action, rank.in_action ? rank.action_begin : now_, now_});
          rank.in_action = false;
          break;
      }
    }
    rank.done = true;
    result_.ranks[number].end = now_;
  }

  TransferTime& time_of(size_t rank, const Transfer& transfer) {
    return result_.ranks[rank].transfers[{transfers_.channel_of(transfer).axes, transfer.collective}];
  }

  void account(double seconds) {
    for (size_t number = 0; number < ranks_.size(); ++number) {
      if (computing_[number] != 0) {
        result_.ranks[number].computing += seconds;
      } else if (const auto& awaited = ranks_[number].awaited) {
        const Transfer& transfer = transfers_.at(*awaited);
        const bool all_here = transfer.state != Transfer::State::expected;
        (all_here ? time_of(number, transfer).exposed : result_.ranks[number].waiting) += seconds;
      }
    }
  }

  void pass(double until) {
    account(until - now_);
    const std::vector<size_t> ended = transfers_.move(now_, until, computing_);
    now_ = until;
    for (size_t number = 0; number < ranks_.size(); ++number) {
      if (ranks_[number].busy_until <= now_) {
        ranks_[number].busy_until = kNever;
        computing_[number] = 0;
        go_on(number);
      }
    }
    for (const size_t transfer : ended) {
      wake(transfer);
    }
  }

  void wake(size_t transfer) {
    for (const int64_t member : transfers_.channel_of(transfers_.at(transfer)).ranks) {
      const auto number = static_cast<size_t>(member);
      Rank& rank = ranks_[number];
      if (rank.awaited == transfer) {
        rank.awaited.reset();
        const Transfer& ended = transfers_.at(transfer);
        result_.spans.push_back(
            {.rank = member,
             .lane = "waits",
             .name = transfers_.channel_of(ended).axes + " " + ended.collective,
             .start = rank.wait_begin,
             .end = now_});
        go_on(number);
      }
    }
  }

  void finish() {
    for (const Transfer& transfer : transfers_.all()) {
      const Channel& channel = transfers_.channel_of(transfer);
      if (transfer.state == Transfer::State::expected) {
        fail_runtime(
            "emulation: {} on axis {} (ranks {}): {} of the ranks never started it",
            transfer.collective,
            channel.axes,
            fmt::join(channel.ranks, ", "),
            channel.ranks.size() - transfer.started);
      }
      if (transfer.state != Transfer::State::done) {
        continue;  // started and never waited for
      }
      for (const int64_t rank : channel.ranks) {
        TransferTime& time = time_of(static_cast<size_t>(rank), transfer);
        ++time.calls;
        time.seconds += transfer.end - transfer.begin;
      }
      result_.spans.push_back(
          {.rank = channel.ranks.front(),
           .lane = channel.axes,
           .name = transfer.collective,
           .start = transfer.begin,
           .end = transfer.end});
    }
    for (const RankTime& rank : result_.ranks) {
      result_.step_seconds = std::max(result_.step_seconds, rank.end);
    }
  }

  [[noreturn]] void fail_deadlock() const {
    std::string who;
    for (size_t number = 0; number < ranks_.size() && who.size() < 600; ++number) {
      if (const auto& awaited = ranks_[number].awaited) {
        const Transfer& transfer = transfers_.at(*awaited);
        who += fmt::format(
            "{}rank {} for {} on axis {}",
            who.empty() ? "" : "; ",
            number,
            transfer.collective,
            transfers_.channel_of(transfer).axes);
      }
    }
    fail_runtime("emulation: deadlock after {:.6f} s: ranks wait for one another: {}", now_, who);
  }

  const std::vector<Recording>& recordings_;
  const std::vector<std::vector<double>>& seconds_;
  Transfers transfers_;
  std::vector<Rank> ranks_;
  std::vector<char> computing_;
  double now_ = 0;
  Replay result_;
};
}  // namespace

double RankTime::exposed() const {
  double sum = 0;
  for (const auto& [kind, time] : transfers) {
    sum += time.exposed;
  }
  return sum;
}

double RankTime::exposed(const std::string& axes) const {
  double sum = 0;
  for (const auto& [kind, time] : transfers) {
    sum += kind.first == axes ? time.exposed : 0;
  }
  return sum;
}

Replay replay(
    const std::vector<Recording>& recordings,
    const std::vector<std::vector<double>>& seconds,
    const plan::Machine& machine) {
  return Ranks(recordings, seconds, machine).run();
}

}  // namespace lehr::emulate

#include "lehr/emulate/transfers.h"

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::emulate {

Transfers::Transfers(int64_t num_ranks, const plan::Machine& machine)
    : machine_(machine), load_(static_cast<size_t>(num_ranks)) {}

size_t Transfers::start(int64_t rank, const Channel& channel, const Call& call, double now) {
  const auto [found, is_new] = known_.try_emplace(channel, channels_.size());
  if (is_new) {
    channels_.push_back(
        {.channel = &found->first, .placement = plan::place_ranks(channel.ranks, machine_.ranks_per_node)});
  }
  Queue& queue = channels_[found->second];
  const size_t place = queue.started_by[rank]++;
  if (place == queue.transfers.size()) {
    queue.transfers.push_back(all_.size());
    all_.push_back({.channel = found->second, .collective = call.collective, .bytes = call.bytes});
  }
  const size_t number = queue.transfers[place];
  Transfer& transfer = all_[number];
  const bool same = transfer.bytes == call.bytes && (channel.message || transfer.collective == call.collective);
  if (!same) {
    fail_runtime(
        "emulation: axis {}: rank {} calls {} of {} bytes where another rank calls {} of {}",
        channel.axes,
        rank,
        call.collective,
        call.bytes,
        transfer.collective,
        transfer.bytes);
  }
  if (++transfer.started == channel.ranks.size()) {
    transfer.state = Transfer::State::queued;
    begin_first(found->second, now);
  }
  return number;
}

// Begins the first call of a channel if all its ranks have started it.
void Transfers::begin_first(size_t channel, double now) {
  Queue& queue = channels_[channel];
  if (queue.first == queue.transfers.size()) {
    return;
  }
  Transfer& transfer = all_[queue.transfers[queue.first]];
  if (transfer.state != Transfer::State::queued) {
    return;
  }
  transfer.time = plan::link_time(machine_, queue.placement, transfer.collective, static_cast<double>(transfer.bytes));
  transfer.left = transfer.time.transfer();
  transfer.begin = now;
  transfer.state = Transfer::State::latency;
  under_way_.push_back(queue.transfers[queue.first]);
  share_.push_back(1);
}

template <class Do>
void Transfers::each_link(const Transfer& transfer, const Do& action) const {
  const Channel& channel = channel_of(transfer);
  const double all = transfer.time.transfer();
  const double node = transfer.time.node / all;
  const double network = transfer.time.network / all;
  for (size_t i = 0; i < channel.ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(channel.ranks[i]);
    if (!channel.message || i == 0) {
      action(rank, node_out, node);
      action(rank, network_out, network);
    }
    if (!channel.message || i == 1) {
      action(rank, node_in, node);
      action(rank, network_in, network);
    }
  }
}

// If the transfers on a link want more than its bandwidth, each gets the same part of what it wants.
void Transfers::share_links() {
  for (auto& links : load_) {
    links.fill(0);
  }
  for (const size_t number : under_way_) {
    if (all_[number].state == Transfer::State::moving) {
      each_link(all_[number], [&](size_t rank, Link link, double part) { load_[rank][link] += part; });
    }
  }
  for (size_t i = 0; i < under_way_.size(); ++i) {
    share_[i] = 1;
    if (all_[under_way_[i]].state == Transfer::State::moving) {
      each_link(all_[under_way_[i]], [&](size_t rank, Link link, double part) {
        if (part > 0) {
          share_[i] = std::min(share_[i], 1 / load_[rank][link]);
        }
      });
    }
  }
}

double Transfers::speed(size_t place, const std::vector<char>& computing) const {
  const auto& ranks = channel_of(all_[under_way_[place]]).ranks;
  const bool beside =
      std::any_of(ranks.begin(), ranks.end(), [&](int64_t rank) { return computing[static_cast<size_t>(rank)] != 0; });
  return share_[place] * (beside ? machine_.communication_overlap : 1);
}

double Transfers::next(double now, const std::vector<char>& computing) const {
  double first = kNever;
  for (size_t i = 0; i < under_way_.size(); ++i) {
    const Transfer& transfer = all_[under_way_[i]];
    if (transfer.state == Transfer::State::latency) {
      first = std::min(first, transfer.begin + transfer.time.latency);
    } else if (const double fast = speed(i, computing); fast > 0) {
      first = std::min(first, now + transfer.left / fast);
    }
  }
  return first;
}

void Transfers::finish(size_t number, double now, std::vector<size_t>& ended) {
  Transfer& transfer = all_[number];
  transfer.state = Transfer::State::done;
  transfer.end = now;
  ended.push_back(number);
  ++channels_[transfer.channel].first;
}

std::vector<size_t> Transfers::move(double now, double until, const std::vector<char>& computing) {
  std::vector<size_t> ended;
  bool changed = false;
  for (size_t i = 0; i < under_way_.size(); ++i) {
    Transfer& transfer = all_[under_way_[i]];
    if (transfer.state == Transfer::State::latency) {
      if (transfer.begin + transfer.time.latency <= until) {
        transfer.state = Transfer::State::moving;
        changed = true;
        if (transfer.left <= 0) {
          finish(under_way_[i], until, ended);
        }
      }
      continue;
    }
    const double fast = speed(i, computing);
    const bool arrives = fast > 0 && now + transfer.left / fast <= until;  // the same sum as in next()
    transfer.left -= fast * (until - now);
    if (arrives) {
      finish(under_way_[i], until, ended);
    }
  }
  if (ended.empty() && !changed) {
    return ended;
  }
  std::erase_if(under_way_, [&](size_t number) { return all_[number].state == Transfer::State::done; });
  share_.resize(under_way_.size());
  for (const size_t number : ended) {
    begin_first(all_[number].channel, until);
  }
  share_links();
  return ended;
}

}  // namespace lehr::emulate

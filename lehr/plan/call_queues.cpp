#include "lehr/plan/call_queues.h"

#include <algorithm>
#include <array>

namespace lehr::plan {

namespace {
enum Link { node_out, node_in, network_out, network_in, kLinks };

// Calls action(link, part of the link) for each link that a call uses now.
template <class Do>
void each_link(const LinkCall& call, const Do& action) {
  const double all = call.time.transfer();
  if (call.time.latency > 0 || all <= 0) {
    return;
  }
  if (call.sends) {
    action(node_out, call.time.node / all);
    action(network_out, call.time.network / all);
  }
  if (call.receives) {
    action(node_in, call.time.node / all);
    action(network_in, call.time.network / all);
  }
}

// The latency, or what follows it.
double next_part(const LinkCall& call) {
  return call.time.latency > 0 ? call.time.latency : call.time.transfer();
}

void move(LinkTime& left, double seconds, bool ends) {
  if (left.latency > 0) {
    left.latency = ends ? 0 : left.latency - seconds;
    return;
  }
  const double factor = ends ? 0 : std::max(0.0, 1 - seconds / left.transfer());
  left.node *= factor;
  left.network *= factor;
}
}  // namespace

size_t CallQueues::start(const LinkCall& call) {
  const size_t number = first_ + calls_.size();
  calls_.push_back(call);
  if (call.time.seconds() > 0) {
    auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& one) { return one.name == call.queue; });
    if (queue == queues_.end()) {
      queue = queues_.insert(queue, {.name = call.queue, .calls = {}});
    }
    queue->calls.push_back(number);
  }
  return number;
}

// If the calls on a link want more than its bandwidth, each gets the same part of what it wants.
void CallQueues::set_speeds(bool computing) {
  std::array<double, kLinks> load = {};
  for (const Queue& queue : queues_) {
    each_link(first_of(queue), [&](Link link, double part) { load[link] += part; });
  }
  for (Queue& queue : queues_) {
    double share = 1;
    each_link(first_of(queue), [&](Link link, double part) {
      if (part > 0) {
        share = std::min(share, 1 / std::max(1.0, load[link]));
      }
    });
    queue.speed = first_of(queue).time.latency > 0 ? 1 : share * (computing ? overlap_ : 1);
  }
}

double CallQueues::go_on(double limit, bool computing) {
  set_speeds(computing);
  for (const Queue& queue : queues_) {
    if (queue.speed > 0) {
      limit = std::min(limit, next_part(first_of(queue)) / queue.speed);
    }
  }
  for (Queue& queue : queues_) {
    LinkCall& call = first_of(queue);
    move(call.time, limit * queue.speed, /*ends=*/queue.speed > 0 && next_part(call) / queue.speed <= limit);
    if (call.time.seconds() <= 0) {
      queue.calls.pop_front();
    }
  }
  std::erase_if(queues_, [](const Queue& queue) { return queue.calls.empty(); });
  if (queues_.empty()) {
    first_ += calls_.size();
    calls_.clear();
  }
  return limit;
}

void CallQueues::pass(double seconds, bool computing) {
  while (seconds > 0 && !queues_.empty()) {
    seconds -= go_on(seconds, computing);
  }
}

}  // namespace lehr::plan

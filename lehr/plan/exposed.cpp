#include "lehr/plan/exposed.h"

#include <algorithm>
#include <array>
#include <map>

namespace lehr::plan {

namespace {
// The calls that were started and have not ended, by queue.
class Calls {
 public:
  Calls(const ActionMeasurement& action, const std::vector<LinkTime>& links, double overlap)
      : action_(action), left_(links), overlap_(overlap) {}

  void start(size_t call) {
    const Communication& one = action_.calls[call];
    const bool message = one.collective == "send" || one.collective == "receive";
    queues_[one.axes + (message ? " " + one.collective : "")].push_back(call);
  }

  bool done(size_t call) const { return left_[call].seconds() <= 0; }

  // Goes on for at most `limit` seconds, until a latency or a transfer ends. Returns the seconds.
  double go_on(double limit, bool computing) {
    std::array<double, kLinks> load = {};
    for (const auto& [name, queue] : queues_) {
      each_link(queue.front(), [&](Link link, double part) { load[link] += part; });
    }
    std::map<size_t, double> speeds;
    for (const auto& [name, queue] : queues_) {
      const size_t call = queue.front();
      double& speed = speeds[call] = computing ? overlap_ : 1;
      double share = 1;
      each_link(call, [&](Link link, double) { share = std::min(share, 1 / std::max(1.0, load[link])); });
      speed = left_[call].latency > 0 ? 1 : speed * share;
      if (speed > 0) {
        limit = std::min(limit, next_part(call) / speed);
      }
    }
    for (const auto& [call, speed] : speeds) {
      move(call, limit * speed, /*ends=*/speed > 0 && next_part(call) / speed <= limit);
    }
    for (auto& [name, queue] : queues_) {
      std::erase_if(queue, [&](size_t call) { return done(call); });
    }
    std::erase_if(queues_, [](const auto& queue) { return queue.second.empty(); });
    return limit;
  }

 private:
  enum Link { node_out, node_in, network_out, network_in, kLinks };

  double next_part(size_t call) const { return left_[call].latency > 0 ? left_[call].latency : left_[call].transfer(); }

  // Calls action(link, part of the link) for each link that a transfer uses.
  template <class Do>
  void each_link(size_t call, const Do& action) const {
    const LinkTime& left = left_[call];
    if (left.latency > 0 || left.transfer() <= 0) {
      return;
    }
    const std::string& name = action_.calls[call].collective;
    if (name != "receive") {
      action(node_out, left.node / left.transfer());
      action(network_out, left.network / left.transfer());
    }
    if (name != "send") {
      action(node_in, left.node / left.transfer());
      action(network_in, left.network / left.transfer());
    }
  }

  void move(size_t call, double seconds, bool ends) {
    LinkTime& left = left_[call];
    if (left.latency > 0) {
      left.latency = ends ? 0 : left.latency - seconds;
      return;
    }
    const double factor = ends ? 0 : std::max(0.0, 1 - seconds / left.transfer());
    left.node *= factor;
    left.network *= factor;
  }

  const ActionMeasurement& action_;
  std::vector<LinkTime> left_;
  double overlap_;
  std::map<std::string, std::vector<size_t>> queues_;
};
}  // namespace

ExposedTime exposed_time(
    const ActionMeasurement& action,
    const std::vector<double>& event_seconds,
    const std::vector<LinkTime>& links,
    double overlap) {
  Calls calls(action, links, overlap);
  ExposedTime time{.by_call = std::vector<double>(links.size(), 0)};
  for (size_t i = 0; i < action.events.size(); ++i) {
    for (double left = event_seconds[i]; left > 0;) {
      const double passed = calls.go_on(left, /*computing=*/true);
      left -= passed;
      time.seconds += passed;
    }
    const ActionEvent& event = action.events[i];
    if (event.started != ActionEvent::kNone && !calls.done(static_cast<size_t>(event.started))) {
      calls.start(static_cast<size_t>(event.started));
    }
    if (event.waited != ActionEvent::kNone) {
      const auto awaited = static_cast<size_t>(event.waited);
      while (!calls.done(awaited)) {
        const double passed = calls.go_on(links[awaited].seconds() + 1, /*computing=*/false);
        time.by_call[awaited] += passed;
        time.seconds += passed;
      }
    }
    time.by_event.push_back(time.seconds);
  }
  return time;
}

}  // namespace lehr::plan

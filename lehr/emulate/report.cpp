// The report, trace and timeline of an emulation.
#include "lehr/plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/emulate/emulate.h"
#include "lehr/pipeline/timeline_plot.h"

namespace lehr::emulate {

namespace {
std::string milliseconds(double seconds) {
  return fmt::format("{:.2f}", 1e3 * seconds);
}

std::set<std::string> all_axes(const Replay& step) {
  std::set<std::string> axes;
  for (const RankTime& rank : step.ranks) {
    for (const auto& [kind, time] : rank.transfers) {
      axes.insert(kind.first);
    }
  }
  return axes;
}

std::string table_of_ranks(const Replay& step, const mesh::DeviceMeshParameters& mesh) {
  const std::set<std::string> axes = all_axes(step);
  std::vector<std::string> head{"rank", "computing", "bubble"};
  head.insert(head.end(), axes.begin(), axes.end());
  head.emplace_back("end");
  std::vector<std::vector<std::string>> rows;
  for (size_t number = 0; number < step.ranks.size(); ++number) {
    const RankTime& rank = step.ranks[number];
    const std::string where = mesh.coordinates(static_cast<int64_t>(number));
    std::vector<std::string> row{
        fmt::format("{}{}{}", number, where.empty() ? "" : ": ", where),
        milliseconds(rank.computing),
        milliseconds(rank.waiting)};
    for (const std::string& one : axes) {
      row.push_back(milliseconds(rank.exposed(one)));
    }
    row.push_back(milliseconds(rank.end));
    rows.push_back(std::move(row));
  }
  return plan::text_table(head, rows);
}

std::string table_of_transfers(const Replay& step) {
  std::map<std::pair<std::string, std::string>, TransferTime> sums;
  for (const RankTime& rank : step.ranks) {
    for (const auto& [kind, time] : rank.transfers) {
      TransferTime& sum = sums[kind];
      sum.calls += time.calls;
      sum.seconds += time.seconds;
      sum.exposed += time.exposed;
    }
  }
  const auto ranks = static_cast<double>(step.ranks.size());
  std::vector<std::vector<std::string>> rows;
  for (const auto& [kind, sum] : sums) {
    const double hidden = std::max(0.0, sum.seconds - sum.exposed);
    rows.push_back(
        {kind.first + " " + kind.second,
         fmt::format("{:.1f}", static_cast<double>(sum.calls) / ranks),
         milliseconds(sum.seconds / ranks),
         milliseconds(sum.exposed / ranks),
         fmt::format("{:.0f} %", sum.seconds > 0 ? 100 * hidden / sum.seconds : 0)});
  }
  return plan::text_table({"communication", "calls", "on links", "exposed", "overlapped"}, rows);
}

Node step_json(const Emulation& emulation, const plan::Plan& plan) {
  Node node = Node::make_table();
  node.set("step_seconds", Node(emulation.step.step_seconds));
  node.set("planned_seconds", Node(plan.step_seconds));
  node.set("mfu", Node(emulation.mfu));
  Node ranks = Node::make_list();
  for (const RankTime& rank : emulation.step.ranks) {
    Node one = Node::make_table();
    one.set("computing_seconds", Node(rank.computing));
    one.set("bubble_seconds", Node(rank.waiting));
    one.set("end_seconds", Node(rank.end));
    Node transfers = Node::make_list();
    for (const auto& [kind, time] : rank.transfers) {
      Node transfer = Node::make_table();
      transfer.set("axes", Node(kind.first));
      transfer.set("collective", Node(kind.second));
      transfer.set("calls", Node(time.calls));
      transfer.set("seconds", Node(time.seconds));
      transfer.set("exposed_seconds", Node(time.exposed));
      transfers.push_back(transfer);
    }
    one.set("communication", transfers);
    ranks.push_back(one);
  }
  node.set("ranks", ranks);
  return node;
}

// The trace-event format: complete events ("X") in microseconds, one process for each rank.
std::string trace_json(const Replay& step, const plan::Plan& plan) {
  std::string text = "{\"traceEvents\":[\n";
  std::map<std::string, int64_t> lanes{{"actions", 0}, {"planned", 1}, {"waits", 2}};
  const auto add = [&](int64_t rank, const std::string& lane, const std::string& name, double start, double end) {
    const auto number = lanes.try_emplace(lane, static_cast<int64_t>(lanes.size())).first->second;
    text += fmt::format(
        "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}},\n",
        name,
        lane,
        rank,
        number,
        1e6 * start,
        1e6 * (end - start));
  };
  for (size_t rank = 0; rank < step.actions.size(); ++rank) {
    for (const TimedRankAction& one : step.actions[rank]) {
      if (one.action.is_compute()) {
        add(static_cast<int64_t>(rank), "actions", pipeline::to_string(one.action), one.start, one.end);
      }
    }
  }
  const size_t each = step.actions.size() / std::max<size_t>(1, plan.timeline.ranks.size());
  for (size_t rank = 0; rank < plan.timeline.ranks.size(); ++rank) {
    for (const pipeline::TimedAction& one : plan.timeline.ranks[rank]) {
      if (one.action.is_compute()) {
        add(static_cast<int64_t>(rank * each), "planned", pipeline::to_string(one.action), one.start, one.end);
      }
    }
  }
  for (const Span& span : step.spans) {
    add(span.rank, span.lane, span.name, span.start, span.end);
  }
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    for (const auto& [lane, number] : lanes) {
      text += fmt::format(
          "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}},\n",
          rank,
          number,
          lane);
    }
  }
  text.resize(text.size() - 2);  // the last comma
  return text + "\n]}\n";
}
}  // namespace

std::string report_text(const Emulation& emulation, const plan::Plan& plan) {
  const double emulated = emulation.step.step_seconds;
  return fmt::format(
             "\nemulation  {} ranks ran the program of a step: {:.4g} s, {:.1f} % MFU; the plan has {:.4g} s, "
             "{:+.1f} %\n\n",
             emulation.step.ranks.size(),
             emulated,
             100 * emulation.mfu,
             plan.step_seconds,
             100 * (plan.step_seconds / emulated - 1)) +
         "Each rank, in ms: a bubble is a wait for a call that another rank has not started; then the exposed time of "
         "each axis\n" +
         table_of_ranks(emulation.step, plan.run.mesh) + "\nCommunication, mean of the ranks, in ms\n" +
         table_of_transfers(emulation.step);
}

pipeline::Timeline emulated_timeline(const Emulation& emulation, const plan::Plan& plan) {
  const Replay& step = emulation.step;
  pipeline::Timeline timeline = plan.timeline;
  timeline.memory.clear();
  const int64_t ranks = plan.run.mesh.pipeline_parallel;
  const int64_t each = plan.run.mesh.world_size() / ranks;
  timeline.makespan = step.step_seconds;
  double last = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto number = static_cast<size_t>(rank);
    const auto& actions = step.actions[static_cast<size_t>(rank * each)];
    timeline.ranks[number].clear();
    for (const TimedRankAction& one : actions) {
      if (one.action.is_compute()) {
        timeline.ranks[number].push_back({.action = one.action, .entry = 0, .start = one.start, .end = one.end});
      }
    }
    if (const auto& computed = timeline.ranks[number]; !computed.empty()) {
      timeline.first_start[number] = computed.front().start;
      timeline.last_end[number] = computed.back().end;
      last = std::max(last, computed.back().end);
    }
    const RankTime& time = step.ranks[static_cast<size_t>(rank * each)];
    timeline.busy[number] = time.computing + time.exposed();
  }
  timeline.update = step.step_seconds - last;
  return timeline;
}

void write_emulation(const Emulation& emulation, const plan::Plan& plan, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "emulation.txt", report_text(emulation, plan));
  write_file_atomically(folder / "emulation.json", to_json(step_json(emulation, plan), true) + "\n");
  write_file_atomically(folder / "emulation_trace.json", trace_json(emulation.step, plan));
  const std::vector<pipeline::NamedTimeline> timelines{
      {"emulated", emulated_timeline(emulation, plan)}, {"planned", plan.timeline}};
  const pipeline::TimelinePlotOptions options{.title = plan.run.config.job.description};
  write_file_atomically(folder / "emulation_timeline.svg", pipeline::timeline_svg(timelines, options));
  write_file_atomically(folder / "emulation_timeline.html", pipeline::timeline_html(timelines, options));
}

}  // namespace lehr::emulate

// JSON form of a plan, and the files of a plan.
#include "lehr/base/file.h"
#include "lehr/config/config.h"
#include "lehr/config/json.h"
#include "lehr/config/node_list.h"
#include "lehr/draw/picture_page.h"
#include "lehr/pipeline/timeline_plot.h"
#include "lehr/plan/report.h"

namespace lehr::plan {

namespace {
Node kinds_of(const MemoryByKind& held) {
  Node node = Node::make_table();
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    node.set(name_of(static_cast<MemoryKind>(kind)), Node(held.bytes[kind]));
  }
  node.set("sum", Node(held.total()));
  return node;
}

Node node_of(const CommunicationCost& one) {
  Node node = Node::make_table();
  node.set("axes", Node(one.axes));
  node.set("collective", Node(one.collective));
  node.set("calls", Node(one.calls));
  node.set("bytes", Node(one.bytes));
  node.set("seconds", Node(one.seconds));
  node.set("exposed_seconds", Node(one.exposed));
  return node;
}

Node node_of(const SchedulePrediction& one) {
  Node node = Node::make_table();
  node.set("name", Node(one.name));
  node.set("stages_per_rank", Node(one.stages_per_rank));
  node.set("step_seconds", Node(one.step_seconds));
  node.set("bubble_share", Node(one.bubble_share));
  node.set("peak_bytes", Node(one.peak_bytes));
  node.set("fits", Node(one.fits));
  node.set("configured", Node(one.configured));
  return node;
}

Node stage_of(const Plan& plan, size_t stage) {
  const PlannedStage& planned = plan.stages[stage];
  Node node = Node::make_table();
  node.set("rank", Node(plan.rank_of_stage[stage]));
  node.set("layers", Node(planned.measured.num_layers));
  node.set("parameters", Node(planned.measured.parameters));
  node.set("forward_seconds", Node(planned.cost.forward.seconds()));
  node.set("backward_seconds", Node(planned.cost.backward.seconds()));
  node.set("backward_input_seconds", Node(planned.cost.backward_input.seconds()));
  node.set("backward_weight_seconds", Node(planned.cost.backward_weight.seconds()));
  node.set("update_seconds", Node(planned.cost.update()));
  node.set("forward_flops", Node(planned.measured.forward.flops()));
  node.set("backward_flops", Node(planned.measured.backward.flops()));
  return node;
}
}  // namespace

Node report_json(const Plan& plan) {
  Node node = Node::make_table();
  node.set("description", Node(plan.run.config.job.description));
  node.set("devices", Node(plan.run.mesh.world_size()));
  node.set("mesh", Node(plan.run.mesh.describe()));
  node.set("machine", to_node(plan.machine));
  node.set("peer", to_node(plan.peer));
  node.set("parameters", Node(plan.counts.num_parameters));
  node.set("causal_flops_per_token", Node(plan.counts.causal_flops_per_token));
  node.set("microbatches", Node(plan.run.microbatches));
  node.set("schedule", Node(plan.schedule));
  node.set("step_seconds", Node(plan.step_seconds));
  node.set("tokens_per_second", Node(plan.tokens_per_second));
  node.set("mfu", Node(plan.mfu));
  node.set("mfu_full", Node(plan.mfu_full));
  node.set("bubble_share", Node(plan.bubble_share));
  node.set("fits", Node(plan.fits()));
  node.set("peak_bytes", Node(plan.peak_bytes()));
  node.set("usable_bytes", Node(plan.machine.usable_bytes()));
  node.set("bottleneck", Node(plan.bottleneck));
  if (plan.goodput) {
    Node goodput = Node::make_table();
    goodput.set("mtbf_seconds", Node(plan.goodput->failures.mtbf));
    goodput.set("checkpoint_bytes", Node(plan.goodput->checkpoint_bytes));
    goodput.set("blocked_seconds", Node(plan.goodput->failures.blocked));
    goodput.set("writing_seconds", Node(plan.goodput->failures.writing));
    goodput.set("best_interval_seconds", Node(plan.goodput->best_interval));
    goodput.set("best_goodput", Node(plan.goodput->best_goodput));
    goodput.set("interval_seconds", Node(plan.goodput->interval));
    goodput.set("goodput", Node(plan.goodput->goodput));
    node.set("goodput", goodput);
  }
  node.set("warnings", node_list(plan.warnings));
  Node time = Node::make_table();
  for (const TimeShare& share : plan.time) {
    time.set(share.name, Node(share.seconds));
  }
  node.set("time", time);
  node.set("communication", node_list(plan.communication, [](const auto& one) { return node_of(one); }));
  Node stages = Node::make_list();
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    stages.push_back(stage_of(plan, stage));
  }
  node.set("stages", stages);
  node.set("ranks", node_list(plan.memory, [](const RankMemory& rank) {
             Node one = Node::make_table();
             one.set("peak", kinds_of(rank.peak));
             one.set("over_time", node_list(rank.moments, [](const MemoryMoment& moment) {
                       Node point = Node::make_list();
                       point.push_back(Node(moment.seconds));
                       point.push_back(Node(moment.held.total()));
                       return point;
                     }));
             return one;
           }));
  node.set("schedules", node_list(plan.schedules, [](const auto& one) { return node_of(one); }));
  return node;
}

void write_plan(const Plan& plan, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "report.txt", report_text(plan));
  write_file_atomically(folder / "plan.json", to_json(report_json(plan), true) + "\n");
  write_file_atomically(folder / "memory.svg", memory_svg(plan));
  write_file_atomically(folder / "memory.html", picture_page("Peak memory of a device", memory_svg(plan)));
  const std::vector<pipeline::NamedTimeline> timelines{{plan.schedule, plan.timeline}};
  const pipeline::TimelinePlotOptions options{.title = plan.run.config.job.description, .memory = true};
  write_file_atomically(folder / "timeline.svg", pipeline::timeline_svg(timelines, options));
  write_file_atomically(folder / "timeline.html", pipeline::timeline_html(timelines, options));
}

}  // namespace lehr::plan

#include "lehr/train/pipeline.h"

#include <sstream>

#include "lehr/base/error.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/progress.h"

namespace lehr::train {

namespace {
std::vector<std::pair<int64_t, nn::Model*>> models_of(const StagedModel& model) {
  std::vector<std::pair<int64_t, nn::Model*>> models;
  for (const auto& stage : model.stages()) {
    models.emplace_back(stage.number, stage.model.get());
  }
  return models;
}

// A program of one micro-batch: forward of all stages, then backward.
pipeline::Program program_of_one(const pipeline::Program& of_step) {
  pipeline::Program program{
      .num_microbatches = 1,
      .rank_of_stage = of_step.rank_of_stage,
      .ranks = std::vector<std::vector<pipeline::Actions>>(of_step.ranks.size())};
  const auto add = [&](pipeline::ActionKind kind, int64_t stage) {
    const int64_t rank = program.rank_of_stage[static_cast<size_t>(stage)];
    program.ranks[static_cast<size_t>(rank)].push_back({{.kind = kind, .stage = stage, .microbatch = 0}});
  };
  for (int64_t stage = 0; stage < program.num_stages(); ++stage) {
    add(pipeline::ActionKind::forward, stage);
  }
  for (int64_t stage = program.num_stages() - 1; stage >= 0; --stage) {
    add(pipeline::ActionKind::backward_full, stage);
  }
  return pipeline::add_communication(program);
}
}  // namespace

const mesh::Group& Pipeline::pp() const {
  return parts_.ranks.context()->group(mesh::axis::pp);
}

Pipeline::Pipeline(const StageLayout& layout, const Parts& parts)
    : parts_(parts),
      program_(parts.program),
      program_of_one_(program_of_one(program_)),
      bound_sends_(pipeline::sends_may_wait(program_)),
      moe_layers_(layout.moe_layers),
      num_experts_(layout.num_experts),
      copies_(layout, models_of(parts.model), pp()) {
  auto routes = copies_.routes();
  for (size_t stage = 1; stage < program_.rank_of_stage.size(); ++stage) {
    routes.insert({program_.rank_of_stage[stage - 1], program_.rank_of_stage[stage]});  // activations
    routes.insert({program_.rank_of_stage[stage], program_.rank_of_stage[stage - 1]});  // gradients
  }
  std::vector<mesh::DistributedContext::Route> between;
  for (const auto& [from, to] : routes) {
    if (from != to) {
      between.push_back({.from = from, .to = to});
    }
  }
  parts_.ranks.context()->connect_messages(pp(), between);
  size_t place = 0;
  for (const auto& [number, model] : parts_.model.stages()) {
    stages_[number] = std::make_unique<ModelStage>(ModelStage::Parts{
        .model = *model,
        .info = {.current_stage = number, .num_stages = layout.num_stages()},
        .task = parts_.task,
        .sharded = &parts_.sharded[place++],
        .num_experts = num_experts_,
        .mesh = parts_.ranks.context()});
  }
}

void Pipeline::run(at::Device device, StageStep& step) {
  run_program(program_, {.device = device, .bound_sends = bound_sends_, .on_action = parts_.on_action}, step);
}

void Pipeline::run_one(at::Device device, StageStep& step) {
  run_program(program_of_one_, {.device = device, .bound_sends = pipeline::sends_may_wait(program_of_one_)}, step);
}

void Pipeline::run_program(
    const pipeline::Program& program, const pipeline::ExecutorOptions& options, StageStep& step) const {
  std::map<int64_t, pipeline::StageRunner*> runners;
  for (const auto& [number, stage] : stages_) {
    stage->begin(step);
    runners[number] = stage.get();
  }
  require(
      static_cast<int64_t>(step.microbatches.size()) == program.num_microbatches,
      "pipeline: the program is for {} micro-batches, but the step has {} here",
      program.num_microbatches,
      step.microbatches.size());
  pipeline::run_program(program, pp().rank(), &pp(), runners, options);
  for (shard::FullySharded& sharded : parts_.sharded) {
    sharded.finish_backward();
  }
  copies_.collect_gradients();
}

// Uses the hosts' connection, so that no rank waits for a device.
void Pipeline::share_names(std::vector<std::string>& names) const {
  const int64_t last = program_.rank_of_stage.back();
  std::string text;
  for (const std::string& name : names) {
    text += name + '\n';
  }
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  pp().broadcast(size, last);
  text.resize(static_cast<size_t>(size.item<int64_t>()));
  if (!text.empty()) {
    pp().broadcast(at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kChar), last);
  }
  names.clear();
  std::istringstream lines(text);
  for (std::string name; std::getline(lines, name);) {
    names.push_back(name);
  }
}

at::Tensor Pipeline::all_moe_layers(const at::Tensor& tokens_per_expert) const {
  if (num_experts_ == 0) {
    return {};
  }
  int64_t total = 0;
  for (const int64_t count : moe_layers_) {
    total += count;
  }
  // Entries of experts that a layer does not have stay negative in the sum.
  at::Tensor all = at::zeros({total, num_experts_}, at::kLong);
  int64_t row = 0;
  int64_t mine = 0;
  for (size_t stage = 0; stage < moe_layers_.size(); ++stage) {
    if (program_.rank_of_stage[stage] == pp().rank() && moe_layers_[stage] > 0) {
      const int64_t here = tokens_per_expert.size(1);
      const at::Tensor rows = all.narrow(0, row, moe_layers_[stage]);
      rows.narrow(1, 0, here).copy_(tokens_per_expert.narrow(0, mine, moe_layers_[stage]));
      rows.narrow(1, here, num_experts_ - here).fill_(-1);
      mine += moe_layers_[stage];
    }
    row += moe_layers_[stage];
  }
  pp().all_reduce(all);
  return all;
}

}  // namespace lehr::train

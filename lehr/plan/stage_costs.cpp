#include "lehr/plan/stage_costs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "lehr/nn/experts.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/named_modules.h"
#include "lehr/plan/experts.h"
#include "lehr/plan/peer_stage.h"

namespace lehr::plan {

namespace {
// Returns a name with "#" for layer numbers.
std::string without_numbers(const std::string& name) {
  std::string kind;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    const bool number = digit && (i == 0 || name[i - 1] == '.' || kind.back() == '#');
    if (!number) {
      kind += name[i];
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

// Returns a key of a stage: names of parameters without numbers, shapes, and the properties that shapes do not show.
// Stages with the same key have the same cost.
std::string kind_of(nn::Model& stage, bool first, bool last) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, parameter] : nn::named_parameters(stage)) {
    ++counts[fmt::format("{}({})", without_numbers(name), fmt::join(parameter->shape(), ","))];
  }
  for (const auto& [name, module] : nn::named_modules(stage)) {
    const auto* layer = dynamic_cast<const nn::LinearImpl*>(module);
    const auto* experts = dynamic_cast<const nn::GroupedLinearImpl*>(module);
    if ((layer != nullptr && layer->float8()) || (experts != nullptr && experts->float8())) {
      ++counts["float8 " + without_numbers(name)];
    }
  }
  std::string text = fmt::format("{}{} of {} layers, of", first, last, stage.num_local_layers());
  for (const nn::MoELayerImpl* moe_layer : nn::moe_layers(stage)) {
    text += fmt::format(" {}", moe_layer->router->top_k());
  }
  for (const auto& [name, count] : counts) {
    text += fmt::format(" {} {}", count, name);
  }
  return text;
}
}  // namespace

StageCosts::StageCosts(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const CostContext& context)
    : config_(config), spec_(spec), args_(args), context_(context) {}

std::vector<const PlannedStage*> StageCosts::of(const std::vector<int64_t>& rank_of_stage) {
  const train::StageLayout layout = train::lay_out_stages(config_, args_, spec_.build, rank_of_stage);
  const auto last = rank_of_stage.size() - 1;
  const auto checkpointing = config_.activation_checkpoint.policy();
  std::vector<const PlannedStage*> stages;
  int64_t layer = 0;
  for (size_t stage = 0; stage <= last; ++stage) {
    std::string kind = kind_of(*layout.models[stage], stage == 0, stage == last) + " computed again:";
    for (const int64_t end = layer + layout.layers[stage]; layer < end; ++layer) {
      kind += checkpointing.applies_to(layer) ? " yes" : " no";
    }
    const auto [found, is_new] = by_kind_.try_emplace(kind);
    PlannedStage& planned = found->second;
    if (is_new) {
      planned.measured = measure_stage(
          config_,
          spec_,
          args_,
          {.stage = static_cast<int64_t>(stage),
           .rank_of_stage = rank_of_stage,
           .world_size = context_.mesh.world_size()});
      planned.measured.expert_tokens = expert_tokens(
          expert_visits(*layout.models[stage]),
          train::microbatch_rows(config_) * config_.training.seq_len,
          context_.mesh);
      const DesignedStage designed{
          .model = *layout.models[stage], .first_layer = layer - layout.layers[stage], .last = stage == last};
      apply_design(planned.measured, designed, config_, args_, context_);
      planned.expert_share = planned.measured.weights.expert_share();
      planned.cost = cost_of(planned.measured, planned.expert_share, context_);
    }
    stages.push_back(&planned);
  }
  return stages;
}

}  // namespace lehr::plan

#include "lehr/train/stage_layout.h"

#include <algorithm>
#include <functional>

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"
#include "lehr/peft/inject.h"
#include "lehr/pipeline/balance.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/program_csv.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/float8.h"

namespace lehr::train {

namespace {
// Runs `work` and prefixes its errors with the key.
void name_key(const char* key, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", key, error.what()));
  }
}
}  // namespace

int64_t StageLayout::stage_of(const std::string& parameter) const {
  for (size_t stage = 0; stage < names.size(); ++stage) {
    if (names[stage].contains(parameter)) {
      return static_cast<int64_t>(stage);
    }
  }
  fail("pipeline: no stage has a parameter {}", parameter);
}

int64_t microbatch_rows(const TrainConfig& config) {
  const int64_t rows = config.parallelism.pipeline_parallel_microbatch_size;
  return rows > 0 ? rows : config.training.local_batch_size;
}

pipeline::Program build_pipeline_program(const TrainConfig& config, int64_t num_microbatches) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (const auto& file = parallelism.pipeline_parallel_schedule_csv) {
    require(
        parallelism.pipeline_parallel_stages_per_rank == -1,
        "parallelism.pipeline_parallel_stages_per_rank: pipeline_parallel_schedule_csv defines it too; remove one of "
        "them");
    auto program = pipeline::read_program_csv(*file);
    require(
        program.num_ranks() == parallelism.pipeline_parallel_degree && program.num_microbatches == num_microbatches,
        "parallelism.pipeline_parallel_schedule_csv: {} is for {} ranks and {} micro-batches; the run has {} "
        "(pipeline_parallel_degree) and {} (sequences of a step on one rank / sequences of a micro-batch)",
        *file,
        program.num_ranks(),
        program.num_microbatches,
        parallelism.pipeline_parallel_degree,
        num_microbatches);
    require(program.has_backward(), "parallelism.pipeline_parallel_schedule_csv: {} has no backward", *file);
    return program;
  }
  pipeline::ScheduleOptions options{
      .num_ranks = parallelism.pipeline_parallel_degree, .num_microbatches = num_microbatches};
  name_key("parallelism.pipeline_parallel_schedule", [&] {
    options.schedule = pipeline::parse_schedule(parallelism.pipeline_parallel_schedule);
  });
  const auto& info = pipeline::schedule_info(options.schedule);
  const int64_t asked = parallelism.pipeline_parallel_stages_per_rank;
  options.num_stages_per_rank = asked > 0 ? asked : info.default_stages_per_rank;
  pipeline::Program program;
  name_key("parallelism.pipeline_parallel_schedule, pipeline_parallel_stages_per_rank", [&] {
    program = pipeline::add_communication(pipeline::build_program(options));
  });
  return program;
}

std::vector<int64_t> chosen_layers(const TrainConfig& config, const descriptor::ModelArgs& args, int64_t num_stages) {
  if (config.parallelism.pipeline_parallel_balance == PipelineBalance::even) {
    return {};
  }
  const auto counts = args.get_nparams_and_flops(config.training.seq_len);
  require(
      !counts.layer_flops_per_token.empty(),
      "parallelism.pipeline_parallel_balance: models of type {} do not provide the cost of their layers "
      "(ModelCounts::layer_flops_per_token); set \"even\"",
      args.model_type());
  const auto checkpointing = config.activation_checkpoint.policy();
  pipeline::PartCosts costs;
  auto head = static_cast<double>(counts.causal_flops_per_token);
  for (size_t layer = 0; layer < counts.layer_flops_per_token.size(); ++layer) {
    const auto flops = static_cast<double>(counts.layer_flops_per_token[layer]);
    head -= flops;
    costs.layers.push_back(flops * checkpointing.cost(static_cast<int64_t>(layer)));
  }
  costs.after = std::max(head, 0.0);
  std::vector<int64_t> layers;
  name_key(
      "parallelism.pipeline_parallel_degree, pipeline_parallel_stages_per_rank, model.args.num_hidden_layers",
      [&] { layers = pipeline::balance_layers(costs, num_stages); });
  return layers;
}

StageLayout lay_out_stages(
    const TrainConfig& config,
    const descriptor::ModelArgs& args,
    const Builders& build,
    const std::vector<int64_t>& rank_of_stage,
    const std::vector<int64_t>& layers) {
  StageLayout layout{.rank_of_stage = rank_of_stage};
  const auto stages = static_cast<int64_t>(rank_of_stage.size());
  const auto chosen = layers.empty() ? chosen_layers(config, args, stages) : layers;
  if (config.peft.enabled()) {
    layout.whole = build_whole_model(config, args, build);
  }
  for (int64_t stage = 0; stage < stages; ++stage) {
    std::shared_ptr<nn::Model> model;
    name_key(
        "parallelism.pipeline_parallel_degree, pipeline_parallel_stages_per_rank, "
        "pipeline_parallel_first_stage_less_layers, pipeline_parallel_last_stage_less_layers, "
        "model.args.num_hidden_layers",
        [&] {
          model = build.model(config, args, {.current_stage = stage, .num_stages = stages, .layers_by_stage = chosen});
        });
    layout.layers.push_back(model->num_local_layers());
    if (!chosen.empty()) {
      require(
          layout.layers.back() == chosen[static_cast<size_t>(stage)],
          "parallelism.pipeline_parallel_balance: the model's family builds stage {} with {} layers, but {} were chosen "
          "(pipeline::distribute_layers_for_pipeline_stage supports that); set \"even\"",
          stage,
          layout.layers.back(),
          chosen[static_cast<size_t>(stage)]);
    }
    require(
        dynamic_cast<const pipeline::ModuleSupportsPipelining*>(model.get()) != nullptr,
        "model.name: models of this family do not declare the tensors between their stages "
        "(pipeline::ModuleSupportsPipelining); set parallelism.pipeline_parallel_degree to 1");
    if (layout.whole) {
      peft::inject_as_in(*layout.whole, *model);
    }
    use_float8(config.float8, *model);
    std::set<std::string> names;
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      names.insert(name);
    }
    const auto moe_layers = nn::moe_layers(*model);
    for (const nn::MoELayerImpl* moe_layer : moe_layers) {
      layout.num_experts = std::max(layout.num_experts, moe_layer->num_experts());
    }
    layout.moe_layers.push_back(static_cast<int64_t>(moe_layers.size()));
    layout.names.push_back(std::move(names));
    layout.models.push_back(std::move(model));
  }
  return layout;
}

}  // namespace lehr::train

#include "lehr/train/load_on_ranks.h"

#include <numeric>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/peft/inject.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/mesh_rules.h"
#include "lehr/train/precision.h"
#include "lehr/train/stage_layout.h"
#include "lehr/train/staged_model.h"

namespace lehr::train {

namespace {
// Pipeline rank i has stage i, unless the stages are beside others.
StageLayout lay_out(
    const pretrained::ModelFolder& folder,
    const pretrained::ModelFolder::Built& built,
    const TrainSpec& spec,
    const TrainConfig& config,
    const mesh::Group& pp,
    const std::optional<ModelOnRanks::Beside>& beside) {
  std::vector<int64_t> rank_of_stage(static_cast<size_t>(pp.size()));
  std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
  std::vector<int64_t> layers;
  if (beside) {
    rank_of_stage = beside->rank_of_stage;
    const int64_t theirs = std::accumulate(beside->layers.begin(), beside->layers.end(), int64_t{0});
    layers = theirs == built.model->num_local_layers() ? beside->layers : layers;
  }
  StageLayout layout = lay_out_stages(config, *folder.args, spec.build, rank_of_stage, layers);
  for (const auto& model : layout.models) {
    if (folder.has_adapters()) {
      peft::inject_as_in(*built.model, *model);
    }
  }
  return layout;
}
}  // namespace

ModelOnRanks::ModelOnRanks(
    const pretrained::ModelFolder& folder,
    const TrainSpecs& specs,
    TrainConfig config,
    const Ranks& ranks,
    at::Device device,
    const std::optional<Beside>& beside)
    : folder_(folder), config_(std::move(config)), device_(device), built_(folder.build()) {
  // Adapters are those of the folder, and nothing is trained.
  config_.peft = {};
  config_.float8 = {};
  config_.activation_checkpoint.mode = "none";
  config_.parallelism.expert_parallel_parts = 1;  // scores need one call per layer
  config_.model = {};                             // may be of another model
  config_.model.hf_assets_path = folder.base.string();
  mesh::DistributedContext& context = *ranks.context();
  const mesh::Group& pp = context.group(mesh::axis::pp);
  const TrainSpec& spec = specs.at(config_.model);
  const auto add =
      [&](const std::shared_ptr<nn::Model>& model, const pipeline::PipelineStageInfo& info, int64_t first) {
        const auto offload = config_.parallelism.fsdp_cpu_offload ? std::optional(device) : std::nullopt;
        stages_.push_back(
            {.number = info.current_stage,
             .model = model,
             .first_layer = first,
             .sharded = lay_out_stage(config_, spec, context, *model, info, offload)});
      };
  if (pp.size() == 1) {
    add(built_.model, {}, 0);
    model_ = built_.model;
    return;
  }
  const StageLayout layout = lay_out(folder, built_, spec, config_, pp, beside);
  std::vector<StagedModel::Stage> staged;
  int64_t first_layer = 0;
  for (int64_t stage = 0; stage < layout.num_stages(); ++stage) {
    const auto index = static_cast<size_t>(stage);
    if (layout.rank_of_stage[index] == pp.rank()) {
      add(layout.models[index], {.current_stage = stage, .num_stages = layout.num_stages()}, first_layer);
      staged.push_back({.number = stage, .model = layout.models[index]});
    }
    first_layer += layout.layers[index];
  }
  model_ = std::make_shared<StagedModel>(std::move(staged), layout.rank_of_stage, pp);
}

// Stage by stage: a tied table is in the first and in the last one.
std::shared_ptr<nn::Model> ModelOnRanks::load() {
  const at::ScalarType dtype = compute_type(config_.training);
  for (Stage& stage : stages_) {
    folder_.fill(*stage.model, built_, [&] {
      if (config_.parallelism.fsdp_cpu_offload) {
        shard::materialize_offloaded(*stage.model, device_, dtype);
      } else {
        nn::materialize(*stage.model, device_, dtype);
      }
    });
    stage.sharded.reset();
  }
  model_->eval();
  return model_;
}

std::shared_ptr<nn::Model> load_on_ranks(
    const pretrained::ModelFolder& folder,
    const TrainSpecs& specs,
    TrainConfig config,
    const Ranks& ranks,
    at::Device device) {
  if (ranks.context() == nullptr) {
    return folder.load(device, compute_type(config.training));
  }
  return ModelOnRanks(folder, specs, std::move(config), ranks, device).load();
}

namespace {
void check_whole_sequences(const descriptor::ModelArgs& args, const Ranks& ranks) {
  if (ranks.world_size() == 1) {
    return;
  }
  const auto& mesh = ranks.context()->parameters();
  require(
      mesh.context_parallel == 1,
      "parallelism.context_parallel_degree: generation and verification need whole sequences, of which a rank would "
      "have a part; expected 1, found {}",
      mesh.context_parallel);
  require(
      mesh.data_parallel_replicate == 1,
      "parallelism.data_parallel_replicate_degree: replicas would all do the same work; expected 1, found {}",
      mesh.data_parallel_replicate);
  check_model_on_mesh(mesh.tensor_parallel, args, mesh);  // a sequence of any length: it is padded
}

Precision precision_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? Precision::float64 : dtype == at::kBFloat16 ? Precision::bfloat16 : Precision::float32;
}
}  // namespace

TrainConfig config_for_whole_sequences(
    const pretrained::ModelFolder& folder,
    const ParallelismConfig& parallelism,
    at::ScalarType dtype,
    const Ranks& ranks) {
  check_whole_sequences(*folder.args, ranks);
  TrainConfig config;
  config.parallelism = parallelism;
  config.training.dtype = precision_of(dtype);
  config.training.seq_len = ranks.sequence_parts();
  return config;
}

std::shared_ptr<nn::Model> load_for_whole_sequences(
    const pretrained::ModelFolder& folder,
    const TrainSpecs& specs,
    const ParallelismConfig& parallelism,
    at::ScalarType dtype,
    const Ranks& ranks,
    at::Device device) {
  return load_on_ranks(folder, specs, config_for_whole_sequences(folder, parallelism, dtype, ranks), ranks, device);
}

}  // namespace lehr::train

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
// Pipeline rank i has stage i.
std::shared_ptr<nn::Model> stage_of_rank(
    const pretrained::ModelFolder& folder,
    const pretrained::ModelFolder::Built& built,
    const TrainSpec& spec,
    const TrainConfig& config,
    const mesh::Group& pp) {
  std::vector<int64_t> rank_of_stage(static_cast<size_t>(pp.size()));
  std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
  const StageLayout layout = lay_out_stages(config, *folder.args, spec.build, rank_of_stage);
  const auto stage = layout.models[static_cast<size_t>(pp.rank())];
  if (folder.has_adapters()) {
    peft::inject_as_in(*built.model, *stage);
  }
  return stage;
}
}  // namespace

ModelOnRanks::ModelOnRanks(
    const pretrained::ModelFolder& folder,
    const TrainSpecs& specs,
    TrainConfig config,
    const Ranks& ranks,
    at::Device device)
    : folder_(folder), config_(std::move(config)), device_(device), built_(folder.build()) {
  // Adapters are those of the folder, and nothing is trained.
  config_.peft = {};
  config_.float8 = {};
  config_.activation_checkpoint.mode = "none";
  config_.model.hf_assets_path = folder.base.string();
  mesh::DistributedContext& context = *ranks.context();
  const mesh::Group& pp = context.group(mesh::axis::pp);
  const TrainSpec& spec = specs.at(config_.model);
  const bool staged = pp.size() > 1;
  const auto part = staged ? stage_of_rank(folder, built_, spec, config_, pp) : built_.model;
  sharded_.emplace(lay_out_stage(
      config_,
      spec,
      context,
      *part,
      {.current_stage = pp.rank(), .num_stages = pp.size()},
      config_.parallelism.fsdp_cpu_offload ? std::optional(device) : std::nullopt));
  model_ = part;
  if (staged) {
    std::vector<int64_t> rank_of_stage(static_cast<size_t>(pp.size()));
    std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
    model_ = std::make_shared<StagedModel>(
        std::vector<StagedModel::Stage>{{.number = pp.rank(), .model = part}}, std::move(rank_of_stage), pp);
  }
}

std::shared_ptr<nn::Model> ModelOnRanks::load() {
  const at::ScalarType dtype = compute_type(config_.training);
  folder_.fill(*model_, built_, [&] {
    if (config_.parallelism.fsdp_cpu_offload) {
      shard::materialize_offloaded(*model_, device_, dtype);
    } else {
      nn::materialize(*model_, device_, dtype);
    }
  });
  sharded_->reset();
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
  // A sequence of any length: it is padded.
  const TaskKind task =
      args.head() == descriptor::Head::classification ? TaskKind::classification : TaskKind::causal_lm;
  check_model_on_mesh(task, mesh.tensor_parallel, args, mesh);
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

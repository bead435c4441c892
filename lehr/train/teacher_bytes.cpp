// The memory of a teacher beside a run's model.
#include <algorithm>
#include <vector>

#include "lehr/nn/head.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/train/distillation.h"
#include "lehr/train/precision.h"
#include "lehr/train/stage_layout.h"

namespace lehr::train {

namespace {
// The highest of a rank: its layers, and the hidden states (tokens, H) of a micro-batch times those in flight.
struct RankPart {
  int64_t layers;
  int64_t kept;
};

// The layers of each stage, where the teacher is cut by the config.
std::vector<int64_t> layers_by_stage(
    const TrainConfig& config, const descriptor::ModelArgs& teacher, int64_t layers, int64_t num_stages) {
  const std::vector<int64_t> chosen = chosen_layers(config, teacher, num_stages);
  std::vector<int64_t> by_stage;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const auto [begin, end] = pipeline::distribute_layers_for_pipeline_stage(
        layers,
        config.parallelism.pipeline_parallel_first_stage_less_layers,
        config.parallelism.pipeline_parallel_last_stage_less_layers,
        {.current_stage = stage, .num_stages = num_stages, .layers_by_stage = chosen});
    by_stage.push_back(end - begin);
  }
  return by_stage;
}

RankPart part_of_pipeline(
    const TrainConfig& config,
    const mesh::DeviceMeshParameters& mesh,
    const descriptor::ModelArgs& teacher,
    int64_t layers,
    bool compares_layers) {
  const int64_t rows = config.training.rows_per_step() / (mesh.data_parallel_replicate * mesh.data_parallel_shard);
  const auto program = build_pipeline_program(config, rows / microbatch_rows(config));
  const auto in_flight = pipeline::peak_forwards_until_input(program);
  const auto by_stage = layers_by_stage(config, teacher, layers, program.num_stages());
  RankPart most{.layers = 0, .kept = 0};
  for (int64_t rank = 0; rank < program.num_ranks(); ++rank) {
    const auto stages = program.stages_of(rank);
    const bool has_last = program.rank_of_stage.back() == rank;
    int64_t of_rank = 0, of_stage = 0;
    for (const int64_t stage : stages) {
      of_rank += by_stage[static_cast<size_t>(stage)];
      of_stage = std::max(of_stage, by_stage[static_cast<size_t>(stage)]);
    }
    most.layers = std::max(most.layers, of_rank);
    const int64_t per_forward = (compares_layers ? of_stage : 0) + (has_last ? 1 : 0);
    most.kept = std::max(most.kept, per_forward * in_flight[static_cast<size_t>(rank)]);
  }
  return most;
}

bool has_tied_head(const nn::Model& model) {
  for (const auto& module : model.modules()) {
    if (const auto* head = module->as<nn::SplitLanguageModellingHeadImpl>()) {
      return head->segments.front()->tied() != nullptr;
    }
  }
  return false;
}
}  // namespace

int64_t teacher_bytes(
    const TrainConfig& config, const descriptor::ModelArgs& teacher, const mesh::DistributedContext* context) {
  const auto model = teacher.build({});  // on meta
  const int64_t hidden = model->head_weight().size(1), all_layers = model->num_local_layers();
  const int64_t all = teacher.get_nparams_and_flops(config.training.seq_len).num_parameters;
  const mesh::DeviceMeshParameters mesh = context == nullptr ? mesh::DeviceMeshParameters{} : context->parameters();
  const bool compares_layers = config.distillation.cosine_weight > 0;
  RankPart part{.layers = all_layers, .kept = compares_layers ? all_layers + 1 : 1};
  int64_t parameters = all, rows = config.training.local_batch_size;
  const int64_t head = teacher.vocab_size() * hidden;
  if (mesh.pipeline_parallel > 1) {
    part = part_of_pipeline(config, mesh, teacher, all_layers, compares_layers);
    parameters = 2 * head + (all - (has_tied_head(*model) ? 1 : 2) * head) * part.layers / all_layers;
    rows = microbatch_rows(config);
  }
  const int64_t shards = mesh.data_parallel_shard * mesh.context_parallel * mesh.tensor_parallel;
  int64_t weights = parameters;
  if (config.parallelism.fsdp_reshard_after_forward == shard::ReshardPolicy::never) {
    weights = parameters / mesh.tensor_parallel;
  } else if (shards > 1) {
    // The head stays unsharded until the model has computed its loss; a layer is unsharded while the one before runs.
    const int64_t whole = head + 2 * (all - head) / all_layers;
    weights = std::min(parameters, parameters / shards + whole / mesh.tensor_parallel);
  }
  const int64_t tokens = rows * config.training.seq_len / (mesh.context_parallel * mesh.tensor_parallel);
  return (weights + part.kept * tokens * hidden) *
         static_cast<int64_t>(c10::elementSize(compute_type(config.training)));
}

}  // namespace lehr::train

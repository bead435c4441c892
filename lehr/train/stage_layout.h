// The split of a run's model into pipeline stages, and their assignment to ranks.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/pipeline/program.h"
#include "lehr/train/builders.h"

namespace lehr::train {

/// Information about all stages. Every rank computes the same layout without communication, since building stages on
/// meta is cheap.
struct StageLayout {
  std::vector<int64_t> rank_of_stage;              ///< Along pp.
  std::vector<std::shared_ptr<nn::Model>> models;  ///< On meta, by stage.
  std::vector<std::set<std::string>> names;        ///< Names of the stage's parameters.
  std::vector<int64_t> moe_layers;                 ///< Number of MoE layers, by stage.
  int64_t num_experts = 0;                         ///< Experts of the largest MoE layer; 0 without experts.
  std::vector<int64_t> layers;                     ///< Number of layers, by stage.
  /// The model in one stage, on meta, if only a part of it is trained ([peft]), for matching patterns against its
  /// names; null otherwise.
  std::shared_ptr<nn::Model> whole;

  int64_t num_stages() const { return static_cast<int64_t>(models.size()); }
  /// The first stage that has a parameter, which trains it; later stages hold copies.
  int64_t stage_of(const std::string& parameter) const;
};

/// Sequences per micro-batch of the pipeline.
int64_t microbatch_rows(const TrainConfig& config);

/// Builds the program of the config for this number of micro-batches per rank. Throws usage errors that name the key: a
/// schedule that is unknown or not defined for these numbers, a file that is not a valid schedule.
pipeline::Program build_pipeline_program(const TrainConfig& config, int64_t num_microbatches);

/// Returns the number of layers per stage if parallelism.pipeline_parallel_balance is "cost", from the config alone;
/// empty for an even split. Recomputation is included in the cost. Throws usage errors that name the key: fewer layers
/// than stages, a family that does not provide the cost of its layers.
std::vector<int64_t> chosen_layers(const TrainConfig& config, const descriptor::ModelArgs& args, int64_t num_stages);

/// Builds all stages, with these numbers of layers; by default, those of the config. Throws usage errors that name the
/// keys: fewer layers than stages, a family that does not declare the tensors between stages.
StageLayout lay_out_stages(
    const TrainConfig& config,
    const descriptor::ModelArgs& args,
    const Builders& build,
    const std::vector<int64_t>& rank_of_stage,
    const std::vector<int64_t>& layers = {});

/// The program and layout of a run with several stages.
struct StagePlan {
  pipeline::Program program;  ///< The program of every step.
  StageLayout layout;
};

}  // namespace lehr::train

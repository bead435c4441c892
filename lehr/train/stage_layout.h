// How the model of a run is cut into stages, and which rank has which.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/pipeline/program.h"
#include "lehr/train/builders.h"

namespace lehr::train {

/// What every rank knows of all stages. The same on all of them, without a word to one another: stages are built on
/// meta in no time.
struct StageLayout {
  std::vector<int64_t> rank_of_stage;              ///< Along pp.
  std::vector<std::shared_ptr<nn::Model>> models;  ///< On meta, by stage.
  std::vector<std::set<std::string>> names;        ///< Of the stage's parameters.
  std::vector<int64_t> mixtures;                   ///< Of experts, by stage.
  int64_t num_experts = 0;                         ///< Of the largest mixture; 0 without.
  std::vector<int64_t> layers;                     ///< By stage.
  /// The model in one stage, on meta, where only a part of it trains ([peft]); null otherwise. Its names are judged.
  std::shared_ptr<nn::Model> whole;

  int64_t num_stages() const { return static_cast<int64_t>(models.size()); }
  /// The first stage that has a parameter, which trains it; later ones hold copies.
  int64_t stage_of(const std::string& parameter) const;
};

/// Rows that go through the pipeline together.
int64_t microbatch_rows(const TrainConfig& config);

/// The program that the config asks for, for this many microbatches on each rank. Throws usage errors that name the
/// key: a schedule that is not known or not defined for these numbers, a file that is no schedule.
pipeline::Program build_pipeline_program(const TrainConfig& config, int64_t num_microbatches);

/// How many layers each stage gets where parallelism.pipeline_parallel_balance is "cost", from the config alone; empty
/// where they are spread evenly. What is computed again in backward costs once more. Throws usage errors that name the
/// key: fewer layers than stages, a family that does not say what its layers cost.
std::vector<int64_t> chosen_layers(const TrainConfig& config, const descriptor::ModelArgs& args, int64_t num_stages);

/// Builds all stages. Throws usage errors that name the keys: fewer layers than stages, a family that does not say what
/// flows between stages.
StageLayout lay_out_stages(
    const TrainConfig& config,
    const descriptor::ModelArgs& args,
    const Builders& build,
    const std::vector<int64_t>& rank_of_stage);

/// What a run with several stages does, and with what.
struct StagePlan {
  pipeline::Program program;  ///< Of every step.
  StageLayout layout;
};

}  // namespace lehr::train

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

  int64_t num_stages() const { return static_cast<int64_t>(models.size()); }
  /// The first stage that has a parameter, which trains it; later ones hold copies.
  int64_t stage_of(const std::string& parameter) const;
};

/// Rows that go through the pipeline together.
int64_t microbatch_rows(const TrainConfig& config);

/// The program that the config asks for, for this many microbatches on each rank. Throws usage errors that name the
/// key: a schedule that is not known or not defined for these numbers, a file that is no schedule.
pipeline::Program build_pipeline_program(const TrainConfig& config, int64_t num_microbatches);

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

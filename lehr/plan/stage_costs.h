// Stages of a model with their costs; stages that are alike are measured once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/plan/cost_model.h"
#include "lehr/train/stage_layout.h"

namespace lehr::plan {

/// A measured stage and its cost.
struct PlannedStage {
  StageMeasurement measured;
  double expert_share = 0;  ///< Fraction of matmul_flops that belongs to experts.
  StageCost cost;
};

/// The costs of a model's stages for any placement on ranks.
class StageCosts {
 public:
  /// `config` must be resolved (checked by train/mesh_rules.h). References must outlive the object.
  StageCosts(
      const train::TrainConfig& config,
      const train::TrainSpec& spec,
      const descriptor::ModelArgs& args,
      const CostContext& context);

  /// Returns the stages of this placement in order, valid as long as this object. Throws like lay_out_stages and
  /// measure_stage.
  std::vector<const PlannedStage*> of(const std::vector<int64_t>& rank_of_stage);

 private:
  const train::TrainConfig& config_;
  const train::TrainSpec& spec_;
  const descriptor::ModelArgs& args_;
  CostContext context_;
  std::map<std::string, PlannedStage> by_kind_;
};

}  // namespace lehr::plan

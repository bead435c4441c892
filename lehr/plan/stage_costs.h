// The stages of a model with what each costs; stages that are alike are measured once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/plan/cost_model.h"
#include "lehr/train/stage_layout.h"

namespace lehr::plan {

/// A stage, measured and costed.
struct PlannedStage {
  StageMeasurement measured;
  double expert_share = 0;  ///< Of product_flops, what experts do.
  StageCost cost;
};

class StageCosts {
 public:
  /// `config` is resolved (train/mesh_rules.h has passed it). References must outlive the object.
  StageCosts(
      const train::TrainConfig& config,
      const train::TrainSpec& spec,
      const descriptor::ModelArgs& args,
      const CostContext& context);

  /// The stages of this layout, by stage. They live as long as the object. Throws as lay_out_stages and measure_stage.
  std::vector<const PlannedStage*> of(const std::vector<int64_t>& rank_of_stage);

 private:
  const train::TrainConfig& config_;
  const train::TrainSpec& spec_;
  const descriptor::ModelArgs& args_;
  CostContext context_;
  std::map<std::string, PlannedStage> by_kind_;
};

/// The share of a model's products that its experts do: by the weights that a token meets, embeddings left out, which
/// multiply nothing.
double expert_share(nn::Model& model);

}  // namespace lehr::plan

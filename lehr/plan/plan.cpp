#include "lehr/plan/plan.h"

namespace lehr::plan {

std::vector<int64_t> Plan::layers_by_stage() const {
  std::vector<int64_t> layers;
  for (const PlannedStage& stage : stages) {
    layers.push_back(stage.measured.num_layers);
  }
  return layers;
}

}  // namespace lehr::plan

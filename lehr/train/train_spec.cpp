#include "lehr/train/train_spec.h"

namespace lehr::train {

void TrainSpecs::add(TrainSpec spec) {
  families_.add(spec.family);
  specs_.emplace(spec.family.name, std::move(spec));
}

const TrainSpec& TrainSpecs::at(const ModelConfig& config) const {
  const descriptor::ModelFamily& family =
      config.hf_assets_path.empty() ? families_.at(config.name) : families_.of_hf_folder(config.hf_assets_path);
  return specs_.at(family.name);
}

}  // namespace lehr::train

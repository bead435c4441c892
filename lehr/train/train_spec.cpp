#include "lehr/train/train_spec.h"

#include "lehr/base/error.h"

namespace lehr::train {

void TrainSpecs::add(TrainSpec spec) {
  families_.add(spec.family);
  specs_.emplace(spec.family.name, std::move(spec));
}

const TrainSpec& TrainSpecs::at(const ModelConfig& config) const {
  if (config.hf_assets_path.empty()) {
    return specs_.at(families_.at(config.name).name);
  }
  const descriptor::ModelFamily& family = families_.of_hf_folder(config.hf_assets_path);
  require(
      config.name == family.name || config.name == ModelConfig().name,  // the default counts as not given
      "model.name: \"{}\" conflicts with model.hf_assets_path, which defines the family too: {} is a \"{}\"; remove one of "
      "them",
      config.name,
      config.hf_assets_path,
      family.name);
  return specs_.at(family.name);
}

const TrainSpec& TrainSpecs::of_hf_folder(const std::filesystem::path& folder) const {
  return specs_.at(families_.of_hf_folder(folder).name);
}

}  // namespace lehr::train

// The weights of a model, from one folder or from the sub-blocks of several.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/weights.h"
#include "lehr/train/replacements.h"

namespace lehr::train {

/// A model that is opened but not loaded: its shape, the map from stored tensors to its parameters, and where these
/// tensors are read. Those of other folders have the folder before their names, as "DIR: model.norm.weight"; where one
/// half goes into several layers, "DIR (for layer 3): model.norm.weight" from the second on, and it is read for each.
class ModelParts : public state::TensorSource {
 public:
  /// Opens the headers of `folder` and of all folders that halves are taken from. A half takes its block config along,
  /// so the layers may differ afterwards. Throws usage errors: a folder that does not hold the model that its
  /// config.json describes, with the weights named; a layer that is not there, or not as its replacement says
  /// (block_config); a model of another family, or one in which a sub-block computes something else (hidden_size,
  /// heads, positions, epsilon, ...).
  ModelParts(
      const std::filesystem::path& folder,
      const std::vector<Replacement>& replacements,
      const descriptor::ModelFamilies& families);

  const descriptor::ModelArgs& args() const { return *args_; }
  /// From the stored tensors to the parameters of the whole model.
  const state::StateMap& map() const { return map_; }
  /// Of the stored tensors.
  const state::TensorSpecs& specs() const { return specs_; }
  /// How `folder` stores experts.
  descriptor::ExpertLayout layout() const;
  /// Throws a usage error if a tensor of another folder has a type that none of `folder` has.
  void require_own_types() const;
  /// Tensors of `folder` that need not be stored: a copy of tied embeddings, say.
  const std::vector<std::string>& left_out() const { return left_out_; }

  at::Tensor read(const std::string& name, const Box& box) const override;
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override;

  /// Fills the model's (materialized) parameters, a stage's or those that are laid out over ranks: of no tensor more
  /// is read than the boxes that they hold.
  void load(nn::Module& model) const;

 private:
  struct Stored {
    const state::WeightReader& reader;
    std::string name;  // in its folder
  };
  Stored stored(const std::string& name) const;

  std::map<std::string, std::shared_ptr<const state::WeightReader>> readers_;  // by what is before their names
  std::unique_ptr<descriptor::ModelArgs> args_;
  state::StateMap map_;
  state::TensorSpecs specs_;
  std::vector<std::string> left_out_;
};

}  // namespace lehr::train

// The weights of a model, from one folder or from the sub-blocks of several.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/pretrained/replacements.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/weights.h"

namespace lehr::pretrained {

/// A model that is opened but not loaded: its shape, the map from stored tensors to its parameters, and the source of
/// these tensors. Names of tensors in other folders are prefixed with the folder, such as "DIR: model.norm.weight". A
/// sub-block that is used in several layers is read for each, with the prefix "DIR (for layer 3): model.norm.weight"
/// from the second on.
class ModelParts : public state::TensorSource {
 public:
  /// Opens the headers of `folder` and of all folders that sub-blocks are taken from. A sub-block includes its block
  /// config, so layers may differ afterwards. Throws a usage error for a folder whose weights do not match its
  /// config.json, with the names of the weights; for a layer that does not exist, or does not match its replacement's
  /// block_config; and for a model of another family, or one whose sub-blocks compute something else (hidden_size,
  /// heads, positions, epsilon, ...). With `keep_mtp_modules`, modules for multi-token prediction are a part of the
  /// model if `folder` has all of their weights.
  ModelParts(
      const std::filesystem::path& folder,
      const std::vector<Replacement>& replacements,
      const descriptor::ModelFamilies& families,
      bool keep_mtp_modules = false);

  const descriptor::ModelArgs& args() const { return *args_; }
  /// The map from the stored tensors to the parameters of the whole model.
  const state::StateMap& map() const { return map_; }
  /// Specs of the stored tensors.
  const state::TensorSpecs& specs() const { return specs_; }
  /// The expert layout of `folder`.
  descriptor::ExpertLayout layout() const;
  /// Throws a usage error if a tensor of another folder has a dtype that no tensor of `folder` has.
  void require_own_types() const;
  /// Tensors of `folder` that need not be stored, such as a copy of tied embeddings.
  const std::vector<std::string>& left_out() const { return left_out_; }

  at::Tensor read(const std::string& name, const Box& box) const override;
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override;

  /// Fills the model's (materialized) parameters, which may be a stage's or sharded. Only the local shards are read.
  void load(nn::Module& model) const;

 private:
  struct Stored {
    const state::WeightReader& reader;
    std::string name;  // in its folder
  };
  Stored stored(const std::string& name) const;

  std::map<std::string, std::shared_ptr<const state::WeightReader>> readers_;  // by the prefix of their names
  std::unique_ptr<descriptor::ModelArgs> args_;
  state::StateMap map_;
  state::TensorSpecs specs_;
  std::vector<std::string> left_out_;
};

}  // namespace lehr::pretrained

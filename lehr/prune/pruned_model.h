// A pruned model that is a view of its parent: parameters are cut when they are read, in files or on ranks.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/prune/parameter_cut.h"
#include "lehr/prune/pruning.h"
#include "lehr/state/map_stream.h"
#include "lehr/train/model_parts.h"

namespace lehr::prune {

/// The parameters of the child, by their names in the model, as a source of tensors. Nothing is read before it is asked
/// for, one box at a time; what pruning does not change is read from the parent's files as it is.
class PrunedModel : public state::TensorSource {
 public:
  /// Opens the headers of `folder`, a model folder in any layout and cut into files in any way. Throws usage errors: a
  /// folder that does not hold the model that its config.json describes, and as child_blocks.
  PrunedModel(const std::filesystem::path& folder, const Pruning& pruning, const descriptor::ModelFamilies& families);

  /// The child's shape.
  const descriptor::ModelArgs& args() const { return *args_; }
  /// Of the child's parameters: their shapes, and the types that the parent's files have.
  const state::TensorSpecs& specs() const { return specs_; }
  /// The parent, without the halves that the child has not.
  const train::ModelParts& parent() const { return parts_; }

  at::Tensor read(const std::string& name, const Box& box) const override;
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override;

  /// Fills the model's (materialized) parameters, a stage's or those that are laid out over ranks, casting.
  void load(nn::Module& model) const;

 private:
  const ParameterCut* cut(const std::string& name) const;

  train::ModelParts parts_;
  state::BoundMap parameters_;  // from the parent's files to its parameters
  std::unique_ptr<descriptor::ModelArgs> args_;
  state::TensorSpecs specs_;
  std::unordered_map<std::string, ParameterCut> cuts_;
};

}  // namespace lehr::prune

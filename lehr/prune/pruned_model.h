// A pruned model as a view of its parent: parameters are cut while they are read, for files or for ranks.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/pretrained/model_parts.h"
#include "lehr/prune/linear_product.h"
#include "lehr/prune/parameter_cut.h"
#include "lehr/prune/pruning.h"
#include "lehr/state/map_stream.h"

namespace lehr::prune {

/// The parameters of the child, by their names in the model, as a source of tensors. Reads are lazy, one region at a
/// time; unchanged parameters are read from the parent's files as they are.
class PrunedModel : public state::TensorSource {
 public:
  /// Opens the headers of `folder`, a model folder in any layout and with any split into files. Throws usage errors if
  /// the folder does not hold the model of its config.json, and those of child_blocks.
  PrunedModel(const std::filesystem::path& folder, const Pruning& pruning, const descriptor::ModelFamilies& families);

  /// Returns the child's shape.
  const descriptor::ModelArgs& args() const { return *args_; }
  /// Returns the shapes of the child's parameters, with the dtypes of the parent's files.
  const state::TensorSpecs& specs() const { return specs_; }
  /// Returns the parent, without the sub-blocks that the child lacks.
  const pretrained::ModelParts& parent() const { return parts_; }

  at::Tensor read(const std::string& name, const Box& box) const override;
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override;

  /// Loads the model's (materialized) parameters, whole or sharded, of all stages or of one, with a cast to their
  /// dtype.
  void load(nn::Module& model) const;

 private:
  const ParameterCut* cut(const std::string& name) const;
  void replace_by_linear(LinearProduct product);

  pretrained::ModelParts parts_;
  state::BoundMap parameters_;  // from the parent's files to its parameters
  std::unique_ptr<descriptor::ModelArgs> args_;
  state::TensorSpecs specs_;
  std::unordered_map<std::string, ParameterCut> cuts_;
  std::unordered_map<std::string, LinearProduct> linear_;
};

}  // namespace lehr::prune

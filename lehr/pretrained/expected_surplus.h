// Tensors of published checkpoints that a model may leave out.
#pragma once

#include <string>

#include "lehr/state/state_map.h"

namespace lehr::state {
class WeightReader;
}

namespace lehr::pretrained {

/// Accepted tensors of a checkpoint other than parameters: tables that can be computed, a language model's head when a
/// classifier is loaded, the head of a model with tied embeddings, and, if the folder's config.json says so, layers for
/// multi-token prediction, an encoder of images, and projections of keys and values that the model does not use.
class ExpectedSurplus {
 public:
  /// `wanted` are the names of the model's own tensors. Both must outlive the object.
  ExpectedSurplus(const state::WeightReader& reader, const state::NameSet& wanted);

  /// True for a tensor that may be left out. Throws a usage error for the head of a model with tied embeddings that
  /// differs from the embeddings.
  bool contains(const std::string& name) const;

 private:
  bool is_of_part(const std::string& name) const;

  const state::WeightReader& reader_;
  const state::NameSet& wanted_;
  state::NameSet parts_;  // names of modules, with a dot at the end
};

}  // namespace lehr::pretrained

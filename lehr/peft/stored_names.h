// A state map as a list of stored tensors, used for adapters, which are named after tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/state/state_map.h"

namespace lehr::peft {

/// The location of a parameter in a checkpoint: rows [first_row, first_row + rows) of the tensor `stored`; or, for an
/// expert, slice `expert` of the parameter is the whole tensor; or the parameter has the rows in `row_order`. An entry
/// with an `operation` states only that the parameter is made from the tensor.
struct StoredName {
  std::string stored;     ///< Name in the checkpoint.
  std::string parameter;  ///< Full name in the model.
  int64_t first_row = 0;
  int64_t rows = 0;  ///< If several parameters share the tensor; otherwise 0.
  std::optional<int64_t> expert = {};
  std::vector<Range> row_order = {};  ///< The tensor's rows in the parameter's order, if it is another one.
  std::string operation = {};  ///< Any other that loads it, such as "transpose 1 2"; adapter_stored_names refuses it.
};

/// Returns the entries of a map from checkpoint to parameters: renamed tensors, stacked experts, tables split by rows,
/// rows in another order, and parameters of other operations.
std::vector<StoredName> stored_names(const state::StateMap& map);

/// Returns the entries of a model without adapters, with one tensor per expert. Names are those of transformers'
/// modules, which begin with "model." even if those in a checkpoint do not (ModelArgs::backbone_prefix).
std::vector<StoredName> stored_names(const descriptor::ModelArgs& args);

/// Returns the map of such entries, none of which has an `operation`. A parameter in several tensors is read from the
/// first of them, and written to all.
state::StateMap to_map(const std::vector<StoredName>& names);

}  // namespace lehr::peft

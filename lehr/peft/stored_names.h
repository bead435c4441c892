// A state map as a list with a row for each tensor on disk: what adapters, which are named after tensors, go by.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/state/state_map.h"

namespace lehr::peft {

/// Where a parameter stands on disk: it is rows [first_row, ...) of the tensor `stored`; or, for an expert, its slice
/// `expert` is the whole of that tensor.
struct StoredName {
  std::string stored;     ///< Name on disk.
  std::string parameter;  ///< Full name in the model.
  int64_t first_row = 0;
  int64_t rows = 0;  ///< Of a tensor that several parameters share; 0 otherwise.
  std::optional<int64_t> expert = {};
};

/// The rows of a map from disk to parameters that renames, stacks experts, and cuts tables by rows. Throws a usage
/// error that names a parameter that comes about in another way.
std::vector<StoredName> stored_names(const state::StateMap& map);

/// The rows of a model without adapters, its experts each in a tensor of its own.
std::vector<StoredName> stored_names(const descriptor::ModelArgs& args);

/// The map of such rows. A parameter that several tensors hold is read from the first of them, and written to all.
state::StateMap to_map(const std::vector<StoredName>& names);

}  // namespace lehr::peft

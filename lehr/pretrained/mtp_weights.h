// Modules for multi-token prediction in folders: those that a folder lacks or has, and the copies that they are stored
// with.
#pragma once

#include <set>
#include <string>

#include "lehr/descriptor/model_args.h"

namespace lehr::state {
class WeightReader;
}

namespace lehr::pretrained {

/// Returns the map from a folder that Lehr writes, in this layout, to the parameters: that of ModelArgs::state_map,
/// after that of ModelArgs::stored_copies.
state::StateMap written_map(const descriptor::ModelArgs& args, descriptor::ExpertLayout layout);

/// The tensors of modules for multi-token prediction of which the checkpoint has none at all: a model that trains such
/// modules initializes them. `map` is that of checkpoint_map.
std::set<std::string> lacked_mtp_modules(const state::StateMap& map, const state::WeightReader& reader);

/// Makes `args` keep its modules for multi-token prediction if the checkpoint has all of their tensors.
void keep_stored_mtp_modules(descriptor::ModelArgs& args, const state::WeightReader& reader);

}  // namespace lehr::pretrained

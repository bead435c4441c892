// What of a checkpoint's tensors this rank holds, and answers for.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lehr/nn/module.h"
#include "lehr/optim/optimizer.h"
#include "lehr/state/bound_map.h"
#include "lehr/state/checkpoint_contents.h"

namespace lehr::mesh {
class DistributedContext;
}
namespace lehr::state {
class WeightReader;
}

namespace lehr::train {

/// Tensors of a checkpoint that come from the parameters of this rank's stage.
struct RankShare {
  std::vector<state::TensorInfo> all;  ///< With whole shapes, in the order of the file; the same on the stage's ranks.
  std::vector<state::TensorPart> parts;  ///< Views of what this rank has and owns (shard::is_owner).
};

/// The parameters as the tensors of a checkpoint: what the inverse of `map`, which goes from the checkpoint to the
/// parameters of the whole model, makes of the boxes that are here. `mesh` is null on one device.
RankShare share_of_parameters(
    const nn::Module& model, const state::StateMap& map, const mesh::DistributedContext* mesh);

/// The optimizer's state, in the order of names. What is shaped like a parameter's box is that part of a tensor that is
/// shaped like the parameter; what has no dimensions is the same on all ranks, and the first one's; what belongs to no
/// parameter is the same on all ranks too, and the main one's.
RankShare share_of_optimizer(
    const optim::Optimizer& optimizer, const nn::Module& model, const mesh::DistributedContext* mesh);

/// The tensors of a whole checkpoint in the order in which files are cut: that of stored_tensors.
std::vector<std::string> stored_order(const state::StateMap& map);

/// The lists of all stages as one, the same on all ranks: in the order of `order` if it names all of them, else by
/// name. Every rank calls it; `key` is for the coordinator.
std::vector<state::TensorInfo> of_all_stages(
    const std::vector<state::TensorInfo>& mine,
    const std::vector<std::string>& order,
    const mesh::DistributedContext& mesh,
    state::Coordinator& coordinator,
    const std::string& key);

/// Reads this rank's part of every tensor of the optimizer's (allocated) state. `all` are the tensors of all stages.
/// Throws usage errors as Optimizer::load_state, and for tensors of other whole shapes; nothing is changed then. The
/// state of the parameters `fresh` stays as it is; with `strict` false, what belongs to no parameter is left out.
void load_optimizer(
    optim::Optimizer& optimizer,
    const nn::Module& model,
    const std::vector<state::TensorInfo>& all,
    const state::WeightReader& reader,
    const std::set<std::string>& fresh = {},
    bool strict = true);

/// The name of a trained parameter that is not finite; empty if there is none.
std::string non_finite_parameter(const nn::Module& model);

}  // namespace lehr::train

// The shards of a checkpoint's tensors that this rank holds and writes.
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

/// Checkpoint tensors of the parameters of this rank's stage.
struct RankShare {
  std::vector<state::TensorInfo> all;    ///< With global shapes, in the order of the file; equal on all ranks of the
                                         ///< stage.
  std::vector<state::TensorPart> parts;  ///< Views of the shards that this rank holds and owns (shard::is_owner).
};

/// Returns the parameters as checkpoint tensors: the inverse of `map`, which maps the checkpoint to the parameters of
/// the whole model, applied to the local shards. `mesh` is null on one device.
RankShare share_of_parameters(
    const nn::Module& model, const state::StateMap& map, const mesh::DistributedContext* mesh);

/// Returns the optimizer's state, in the order of names. A tensor shaped like a parameter's shard is the same shard of
/// a tensor shaped like the parameter; scalars are equal on all ranks and written by the first one; state that belongs
/// to no parameter is also equal on all ranks and written by the main one.
RankShare share_of_optimizer(
    const optim::Optimizer& optimizer, const nn::Module& model, const mesh::DistributedContext* mesh);

/// The tensors of a whole checkpoint in the order in which they are split into files: that of stored_tensors.
std::vector<std::string> stored_order(const state::StateMap& map);

/// Merges the lists of all stages, equally on all ranks: in the order of `order` if it names all of them, else by name.
/// All ranks must call it; `key` is for the coordinator.
std::vector<state::TensorInfo> of_all_stages(
    const std::vector<state::TensorInfo>& mine,
    const std::vector<std::string>& order,
    const mesh::DistributedContext& mesh,
    state::Coordinator& coordinator,
    const std::string& key);

/// Throws a usage error if a run trains other parameters than those with optimizer state in a checkpoint, `then`; `now`
/// are the tensors of its optimizer, of all stages.
void require_same_trained(const state::WeightReader& then, const std::vector<state::TensorInfo>& now);

/// Reads this rank's shard of every tensor of the optimizer's (allocated) state. `all` are the tensors of all stages.
/// Throws the usage errors of Optimizer::load_state, one for state of other names or dtypes, and one for tensors of
/// other global shapes; nothing is changed then. The state of the parameters `fresh` is unchanged; if `strict` is
/// false, state that belongs to no parameter is skipped.
void load_optimizer(
    optim::Optimizer& optimizer,
    const nn::Module& model,
    const std::vector<state::TensorInfo>& all,
    const state::WeightReader& reader,
    const std::set<std::string>& fresh = {},
    bool strict = true);

}  // namespace lehr::train

// Loading and storing of a model's parameters as the tensors of a checkpoint folder.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/state/bound_map.h"

namespace lehr::state {
class TensorSource;
class WeightReader;
}  // namespace lehr::state

namespace lehr::pretrained {

/// Returns the map from this checkpoint, in its layout, to the parameters of the whole model that `args` describes. The
/// checkpoint of an embedding model may be that of a model with another head.
state::StateMap checkpoint_map(const descriptor::ModelArgs& args, const state::WeightReader& reader);

/// Shapes and dtypes of the parameters.
state::TensorSpecs parameter_specs(const nn::Module& model);

/// The strictness of loading, and the tensors to skip. The defaults require an exact match.
struct LoadRules {
  std::set<std::string> may_lack = {};  ///< Tensors that the checkpoint may lack.
  std::set<std::string> may_have = {};  ///< Tensors that it may have beside the model's: another head.
  /// Regular expressions; tensors whose whole name matches one are skipped.
  std::vector<std::string> exclude = {};
  bool strict = true;  ///< False: any tensor may be missing, and unexpected tensors are ignored.
};

/// Stored heads that a checkpoint may have beside the tensors of such a model: an embedding model may start from a
/// language model or a classifier of texts or of tokens.
std::set<std::string> heads_beside(const descriptor::ModelArgs& args);

/// Accepted differences between a checkpoint and a model. Names are those of the checkpoint's tensors.
struct CheckpointDifference {
  std::vector<std::string> lacked;      ///< Missing according to LoadRules; also tensors of other pipeline stages,
                                        ///< which those check.
  std::vector<std::string> left_out;    ///< Rotary tables, the copy of a tied head, another head, layers for
                                        ///< multi-token prediction.
  std::vector<std::string> unexpected;  ///< Unexpected tensors, if LoadRules::strict is false.
  std::vector<std::string> excluded;    ///< Skipped according to LoadRules.
};

/// Throws a usage error that lists the tensors that the map reads but the checkpoint lacks, tensors with a wrong shape,
/// and unexpected tensors. `parameters` may be those of a pipeline stage. Independent of the rules, it also throws for
/// a wrong shape, for a pattern that matches no tensor's name, and for a parameter of several tensors of which only
/// some are read.
CheckpointDifference check_checkpoint(
    const state::StateMap& map,
    const state::TensorSpecs& parameters,
    const state::WeightReader& reader,
    const LoadRules& rules = {});

/// The tensors that hold state (nn::Module::declare_state), which another program's checkpoint may lack: the state is
/// then initialized as in a new run.
std::set<std::string> stored_state(const nn::Module& model, const state::StateMap& map);

/// The result of load_or_start_weights.
struct StartedWeights {
  CheckpointDifference difference;
  std::set<std::string> fresh;  ///< Parameters of the whole model that were initialized as in a new run.
};

/// Returns the rules for another program's checkpoint, which may also lack state.
LoadRules with_state(LoadRules rules, const nn::Module& model, const state::StateMap& map);

/// load_weights for another program's or another model's checkpoint: state that it lacks, and tensors that `rules`
/// allow to be missing or exclude, are initialized as in a new run with this seed, with the same bits for any sharding.
StartedWeights load_or_start_weights(
    nn::Module& model,
    const descriptor::ModelArgs& args,
    const state::WeightReader& reader,
    const LoadRules& rules,
    uint64_t seed);

/// A fingerprint of the weights in hexadecimal, computed from the names, the shapes and some elements of every tensor.
std::string weights_fingerprint(const state::WeightReader& reader);

/// Copies the checkpoint's tensors into the model's (materialized) parameters and casts them; reads only local shards.
/// `map` is that of the whole model; for a pipeline stage, only its own parameters are read. Throws the errors of
/// check_checkpoint. Parameters whose tensors are missing or excluded keep their values.
CheckpointDifference load_weights(
    nn::Module& model, const state::StateMap& map, const state::WeightReader& reader, const LoadRules& rules = {});

/// Copies the tensors of `bound` into the model's (materialized) parameters that it knows, and casts them; reads only
/// local shards, and no other byte of the source.
void read_parameters(nn::Module& model, const state::BoundMap& bound, const state::TensorSource& source);

/// Returns the parameters as checkpoint tensors, in the map's order: the inverse of `map`, which maps the checkpoint to
/// the parameters of the whole model. Tensors that are one part of a parameter are views. For models that are not
/// sharded.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors(const nn::Module& model, const state::StateMap& map);

/// Converts `values`, one tensor per parameter name (such as gradients), in the way that stored_tensors converts
/// parameters.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors_of(
    const std::vector<std::pair<std::string, at::Tensor>>& values, const state::StateMap& map);

}  // namespace lehr::pretrained

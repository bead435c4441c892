// Between a model's parameters and the tensors of a checkpoint folder.
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

namespace lehr::train {

/// The map from this checkpoint to the parameters of the whole model that `args` describes, in the layout that the
/// checkpoint has.
state::StateMap checkpoint_map(const descriptor::ModelArgs& args, const state::WeightReader& reader);

/// Shapes of parameters, or of what is named like them. The type is the parameters' own.
state::TensorSpecs parameter_specs(const nn::Module& model);

/// How well a checkpoint must fit a model, and what of it is not read. As it is by default: exactly, all of it.
struct LoadRules {
  std::set<std::string> may_lack = {};  ///< Tensors of the checkpoint that it may lack.
  /// Regular expressions; tensors whose whole name one of them matches are not looked at.
  std::vector<std::string> exclude = {};
  bool strict = true;  ///< False: any may be missing, and what the model has no place for is left out.
};

/// What a checkpoint lacks or has too much, where that is no mistake. Names are those of the checkpoint's tensors.
struct CheckpointDifference {
  std::vector<std::string> lacked;      ///< By LoadRules; and what other pipeline stages need, which they judge.
  std::vector<std::string> left_out;    ///< Rotary tables, the copy of a tied head, a language model's head.
  std::vector<std::string> unexpected;  ///< The model has no place for them, and LoadRules::strict is false.
  std::vector<std::string> excluded;    ///< By LoadRules.
};

/// Throws a usage error that lists the tensors that the map reads and the checkpoint lacks, that have another shape
/// than the parameters (`parameters` may be those of a pipeline stage) ask for, or that the map has no place for. Other
/// shapes are an error whatever the rules say; so are a pattern of theirs that no tensor's name matches, and a
/// parameter that would be made of several tensors of which only some are to be read.
CheckpointDifference check_checkpoint(
    const state::StateMap& map,
    const state::TensorSpecs& parameters,
    const state::WeightReader& reader,
    const LoadRules& rules = {});

/// The tensors that hold state (nn::Module::declare_state), which another program's checkpoint may lack: it starts then
/// as in a new run.
std::set<std::string> stored_state(const nn::Module& model, const state::StateMap& map);

/// What load_or_start_weights did.
struct StartedWeights {
  CheckpointDifference difference;
  std::set<std::string> fresh;  ///< Parameters of the whole model that start as in a new run.
};

/// The rules for another program's checkpoint: it may lack state, too.
LoadRules with_state(LoadRules rules, const nn::Module& model, const state::StateMap& map);

/// load_weights from another program's checkpoint or another model's: state that it lacks, and what `rules` let it
/// lack or exclude, start as in a new run of that seed, the same bits whatever the ranks hold of them.
StartedWeights load_or_start_weights(
    nn::Module& model,
    const descriptor::ModelArgs& args,
    const state::WeightReader& reader,
    const LoadRules& rules,
    uint64_t seed);

/// A number, in hexadecimal, for "the same weights", from the names, the shapes and some elements of every tensor.
std::string weights_fingerprint(const state::WeightReader& reader);

/// Copies the checkpoint's tensors into the model's (materialized) parameters, casting to their type; of a parameter
/// that is laid out over ranks the box. `map` is that of the whole model; of a pipeline stage only its own parameters
/// are read. Throws as check_checkpoint. Parameters that need what the checkpoint lacks or `rules` exclude keep their
/// values.
CheckpointDifference load_weights(
    nn::Module& model, const state::StateMap& map, const state::WeightReader& reader, const LoadRules& rules = {});

/// Copies what `bound` gives for each of the model's (materialized) parameters that it knows into the parameter,
/// casting: of a parameter that is laid out over ranks the box, and no other byte of the source is read.
void read_parameters(nn::Module& model, const state::BoundMap& bound, const state::TensorSource& source);

/// The parameters as the tensors of a checkpoint, in the map's order: what the inverse of `map`, which goes from the
/// checkpoint to the parameters of the whole model, makes of the ones that are here. Those that are one part of a
/// parameter are not copied. For models that one device has whole.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors(const nn::Module& model, const state::StateMap& map);

/// The tensors of `values`, which has one for each parameter name (a gradient, say), as stored_tensors gives
/// parameters.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors_of(
    const std::vector<std::pair<std::string, at::Tensor>>& values, const state::StateMap& map);

}  // namespace lehr::train

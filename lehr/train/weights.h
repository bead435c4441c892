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

/// What a checkpoint lacks or has too much, where that is no mistake.
struct CheckpointDifference {
  std::vector<std::string> lacked;    ///< Of `may_lack`.
  std::vector<std::string> left_out;  ///< Rotary tables, the copy of a tied head, a language model's head.
};

/// Throws a usage error that lists the tensors that the map reads and the checkpoint lacks, that have another shape
/// than the parameters (`parameters` may be those of a pipeline stage) ask for, or that the map has no place for.
CheckpointDifference check_checkpoint(
    const state::StateMap& map,
    const state::TensorSpecs& parameters,
    const state::WeightReader& reader,
    const std::set<std::string>& may_lack = {});

/// The tensors that hold state (nn::Module::declare_state), which another program's checkpoint may lack: it starts then
/// as in a new run.
std::set<std::string> stored_state(const nn::Module& model, const state::StateMap& map);

/// load_weights of a whole model from another program's checkpoint or another model's: state that it lacks, and the
/// tensors `may_lack` that it lacks, start as in a new run of that seed. Returns those.
std::vector<std::string> load_or_start_weights(
    nn::Module& model,
    const descriptor::ModelArgs& args,
    const state::WeightReader& reader,
    const std::set<std::string>& may_lack,
    uint64_t seed);

/// A number, in hexadecimal, for "the same weights", from the names, the shapes and some elements of every tensor.
std::string weights_fingerprint(const state::WeightReader& reader);

/// Copies the checkpoint's tensors into the model's (materialized) parameters, casting to their type; of a parameter
/// that is laid out over ranks the box. `map` is that of the whole model; of a pipeline stage only its own parameters
/// are read. Throws as check_checkpoint. `may_lack` names tensors that keep their values when the checkpoint has none
/// of them; returns those.
std::vector<std::string> load_weights(
    nn::Module& model,
    const state::StateMap& map,
    const state::WeightReader& reader,
    const std::set<std::string>& may_lack = {});

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

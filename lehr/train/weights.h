// Between a model's parameters and the tensors of a checkpoint folder.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::state {
class WeightReader;
}

namespace lehr::train {

/// Copies the checkpoint's tensors into the model's (materialized) parameters, casting to their type. Throws a usage
/// error that lists what is missing, of another shape, or left over; rotary tables and the copy of a tied head that
/// some tools write are no surprise. `may_lack` names tensors that keep their values when the checkpoint has none of
/// them; returns those.
std::vector<std::string> load_weights(
    nn::Module& model,
    const std::vector<descriptor::StoredName>& names,
    const state::WeightReader& reader,
    const std::set<std::string>& may_lack = {});

/// A number, in hexadecimal, for "the same weights", from the names, the shapes and some elements of every tensor.
std::string weights_fingerprint(const state::WeightReader& reader);

/// The parameters as the tensors of a checkpoint, in the model's order; those that are whole are not copied.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors(
    const nn::Module& model, const std::vector<descriptor::StoredName>& names);

/// The tensors of `values`, which has one for each parameter name (a gradient, say), as stored_tensors gives
/// parameters.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors_of(
    const std::vector<std::pair<std::string, at::Tensor>>& values, const std::vector<descriptor::StoredName>& names);

}  // namespace lehr::train

// Keys of [model.args] that are keys of config.json.
#pragma once

#include <string>

#include "lehr/descriptor/model_args.h"

namespace lehr::descriptor {

/// Throws a usage error for a key of `keys` that the config.json of `args` has with another value: the family does not
/// read it, or the tokenizer, the task or another key decided. The error names it as a key of `table`.
void require_in_effect(const ModelArgs& args, const Node& keys, const std::string& table);

}  // namespace lehr::descriptor

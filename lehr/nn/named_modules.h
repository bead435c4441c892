// Enumeration of a model's modules by their full names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// Modules and their full names.
using NamedModules = std::vector<std::pair<std::string, torch::nn::Module*>>;

/// Returns every module below `root` with its full name, which is the prefix of its parameters' names, in order:
/// "model.layers.0.mlp".
NamedModules named_modules(const torch::nn::Module& root);

}  // namespace lehr::nn

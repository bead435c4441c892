// The modules of a model by their full names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

using NamedModules = std::vector<std::pair<std::string, torch::nn::Module*>>;

/// Every module below `root` by its full name, as parameters' names begin with it, in order: "model.layers.0.mlp".
NamedModules named_modules(const torch::nn::Module& root);

}  // namespace lehr::nn

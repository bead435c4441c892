// The optimizers that a config can name.
#pragma once

#include <functional>
#include <memory>

#include "lehr/optim/optimizer.h"
#include "lehr/optim/optimizer_config.h"

namespace lehr::optim {

/// Builds an optimizer from the section `[optimizer]` and the model's parameters.
using OptimizerBuilder =
    std::function<std::unique_ptr<Optimizer>(const OptimizerConfig& config, const OptimizerContext& context)>;

/// Returns the optimizer that `config.name` names. Throws a usage error for the problems that OptimizerConfig::check
/// reports, and for patterns that match no parameter.
std::unique_ptr<Optimizer> build_optimizer(const OptimizerConfig& config, const OptimizerContext& context);

}  // namespace lehr::optim

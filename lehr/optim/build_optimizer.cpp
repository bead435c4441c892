#include "lehr/optim/build_optimizer.h"

#include <string>
#include <vector>

#include "lehr/optim/adamw.h"
#include "lehr/optim/muon.h"
#include "lehr/optim/sgd.h"
#include "lehr/optim/stochastic_adamw.h"

namespace lehr::optim {

std::unique_ptr<Optimizer> build_optimizer(const OptimizerConfig& config, const OptimizerContext& context) {
  std::vector<std::string> names;
  for (const auto& parameter : context.parameters) {
    names.push_back(parameter.name);
  }
  switch (config.name) {
    case OptimizerKind::adam:
      return std::make_unique<Adam>(config, names);
    case OptimizerKind::sgd:
      return std::make_unique<SGD>(config, names);
    case OptimizerKind::stochastic_adamw:
      return std::make_unique<StochasticAdamW>(config, names, context.seed);
    case OptimizerKind::muon:
      return std::make_unique<Muon>(config, context.parameters, context.whole_tensors);
    case OptimizerKind::adamw:
      break;
  }
  return std::make_unique<AdamW>(config, names);
}

}  // namespace lehr::optim

// Saving, restoring and construction, which are the same for every optimizer.
#include "lehr/optim/optimizer.h"

#include <c10/util/StringUtil.h>

#include "lehr/base/error.h"
#include "lehr/optim/adamw.h"
#include "lehr/optim/muon.h"
#include "lehr/optim/sgd.h"
#include "lehr/optim/stochastic_adamw.h"

namespace lehr::optim {

std::string describe(const at::Tensor& tensor) {
  return fmt::format(
      "{} [{}] on {}", c10::toString(tensor.scalar_type()), c10::Join(", ", tensor.sizes()), tensor.device().str());
}

void Optimizer::require_state(const std::map<std::string, at::Tensor>& tensors) const {
  std::string problems;
  const auto entries = state();
  const std::map<std::string, at::Tensor> own(entries.begin(), entries.end());
  for (const auto& [name, tensor] : own) {
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      problems += fmt::format("\n  {}: missing", name);
    } else if (it->second.sizes() != tensor.sizes() || it->second.scalar_type() != tensor.scalar_type()) {
      problems += fmt::format("\n  {}: expected {}, found {}", name, describe(tensor), describe(it->second));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!own.contains(name)) {
      problems += fmt::format("\n  {}: belongs to no parameter of this model under this optimizer", name);
    }
  }
  require(
      problems.empty(),
      "optimizer state: it does not fit the model and [optimizer], so nothing was loaded:{}",
      problems);
}

void Optimizer::load_state(const std::map<std::string, at::Tensor>& tensors) {
  require_state(tensors);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state()) {
    tensor.copy_(tensors.at(name));
  }
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state()) {
    bytes += tensor.is_floating_point() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  return bytes;
}

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

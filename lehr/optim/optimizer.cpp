// Saving and restoring, which are the same for every optimizer.
#include "lehr/optim/optimizer.h"

#include <c10/util/StringUtil.h>

#include "lehr/base/error.h"

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

}  // namespace lehr::optim

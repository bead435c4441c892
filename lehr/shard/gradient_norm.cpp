#include "lehr/shard/gradient_norm.h"

#include "lehr/ops/global_norm/global_norm.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

at::Tensor gradient_norm(const std::vector<nn::NamedParameter>& parameters, mesh::DistributedContext& context) {
  std::vector<at::Tensor> owned;
  at::Device device(at::kCPU);
  for (const auto& [name, parameter] : parameters) {
    device = parameter->value().device();
    if (parameter->trainable() && is_owner(*parameter, context)) {
      owned.push_back(parameter->value().grad());
    }
  }
  // A rank may own nothing: then the sum is a zero in host memory.
  const at::Tensor sum = ops::sum_of_squares(owned).to(device);
  context.world().all_reduce(sum);
  return sum.sqrt();
}

}  // namespace lehr::shard

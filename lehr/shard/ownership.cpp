#include "lehr/shard/ownership.h"

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::shard {

std::vector<std::string> domain_axes(const nn::Parameter& parameter) {
  const Layout& layout = parameter.layout();
  const bool expert = layout.find(mesh::axis::ep) != nullptr || layout.find(mesh::axis::ep_shard) != nullptr;
  return expert ? std::vector{mesh::axis::dp_replicate, mesh::axis::ep_shard, mesh::axis::ep}
                : std::vector{mesh::axis::dp_replicate, mesh::axis::fsdp, mesh::axis::tp};
}

bool is_owner(const nn::Parameter& parameter, const mesh::DistributedContext& context) {
  for (const std::string& axis : domain_axes(parameter)) {
    if (context.size(axis) == 1) {
      continue;
    }
    const Placement* placement = parameter.layout().find(axis);
    invariant(placement != nullptr, "parameter {}: has no placement on axis {}", parameter.name(), axis);
    if (placement->kind != Placement::Kind::shard && context.index(axis) != 0) {
      return false;
    }
  }
  return true;
}

bool is_first(const nn::Parameter& parameter, const mesh::DistributedContext& context) {
  const auto axes = domain_axes(parameter);
  return std::all_of(axes.begin(), axes.end(), [&](const std::string& axis) { return context.index(axis) == 0; });
}

void replicate_elsewhere(nn::Parameter& parameter, const mesh::DistributedContext& context) {
  for (const std::string& axis : domain_axes(parameter)) {
    if (context.size(axis) > 1 && parameter.layout().find(axis) == nullptr) {
      parameter.lay_out(axis, Placement::replicate(), context.index(axis), context.size(axis));
    }
  }
}

}  // namespace lehr::shard

#include "lehr/base/layout.h"

#include <fmt/format.h>

namespace lehr {

const Placement* Layout::find(const std::string& axis) const {
  for (const auto& entry : axes_) {
    if (entry.axis == axis) {
      return &entry.placement;
    }
  }
  return nullptr;
}

void Layout::set(const std::string& axis, Placement placement) {
  for (auto& entry : axes_) {
    if (entry.axis == axis) {
      entry.placement = placement;
      return;
    }
  }
  axes_.push_back({axis, placement});
}

std::vector<std::string> Layout::axes_of(Placement::Kind kind) const {
  std::vector<std::string> found;
  for (const auto& entry : axes_) {
    if (entry.placement.kind == kind) {
      found.push_back(entry.axis);
    }
  }
  return found;
}

std::string describe(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return "replicate";
    case Placement::Kind::invariant:
      return "invariant";
    case Placement::Kind::partial:
      return "partial";
    case Placement::Kind::shard:
      return fmt::format("shard({})", placement.dim);
    case Placement::Kind::varying:
      break;
  }
  return "varying";
}

std::string describe(const Layout& layout) {
  std::string text;
  for (const auto& [axis, placement] : layout.axes()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", axis, describe(placement));
  }
  return text;
}

}  // namespace lehr

// How tensors lie on a mesh of devices: for each of its axes, what the ranks along it hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr {

/// What the ranks along one axis hold of a tensor. Gradients lie in the way that belongs to it: of a replicated tensor
/// they are partial (each rank used it on its own data) and the other way round; of the other kinds they are the same.
struct Placement {
  enum class Kind {
    replicate,  ///< All the same; the ranks do different work with it.
    invariant,  ///< All the same; the ranks do the same work with it, so gradients are the same too.
    partial,    ///< Summands: the tensor is their sum.
    shard,      ///< Parts of dimension `dim`, in the order of the ranks (or in one that collectives undo).
    varying,    ///< Each its own, with no relation.
  };
  Kind kind = Kind::replicate;
  int64_t dim = 0;  ///< Of shard; 0 otherwise.

  static Placement replicate() { return {}; }
  static Placement invariant() { return {.kind = Kind::invariant}; }
  static Placement partial() { return {.kind = Kind::partial}; }
  static Placement shard(int64_t dim) { return {.kind = Kind::shard, .dim = dim}; }
  static Placement varying() { return {.kind = Kind::varying}; }
  bool operator==(const Placement&) const = default;
};

/// A placement on a named axis.
struct AxisPlacement {
  std::string axis;
  Placement placement;
  bool operator==(const AxisPlacement&) const = default;
};

/// The placements on all axes that a tensor is laid out on, in the order in which they cut it: what comes first cuts
/// the whole, what follows cuts the part. On an axis that is not named nothing is said.
class Layout {
 public:
  Layout() = default;
  Layout(std::initializer_list<AxisPlacement> axes) : axes_(axes) {}

  /// Of that axis; null if nothing is said of it.
  const Placement* find(const std::string& axis) const;
  /// Says it anew, or for the first time.
  void set(const std::string& axis, Placement placement);
  const std::vector<AxisPlacement>& axes() const { return axes_; }
  /// The axes of that kind, in order.
  std::vector<std::string> axes_of(Placement::Kind kind) const;
  bool operator==(const Layout&) const = default;

 private:
  std::vector<AxisPlacement> axes_;
};

/// "replicate", "invariant", "partial", "shard(0)", "varying"
std::string describe(const Placement& placement);
/// "fsdp: shard(0), tp: replicate"
std::string describe(const Layout& layout);

}  // namespace lehr

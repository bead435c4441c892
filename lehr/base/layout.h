// Layouts: the placement of a tensor on each axis of a device mesh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr {

/// The relation between the tensors that the ranks of one axis hold. The gradient has the dual placement: partial for a
/// replicated tensor (each rank used it on its own data) and replicate for a partial one; for the other kinds it is the
/// same.
struct Placement {
  enum class Kind {
    replicate,  ///< Equal on all ranks; the ranks do different work with it.
    invariant,  ///< Equal on all ranks; the ranks do the same work with it, so gradients are equal too.
    partial,    ///< The tensor is the sum of the ranks' tensors.
    shard,      ///< Shards of dimension `dim`, in the order of the ranks (or in one that collectives undo).
    varying,    ///< Independent on each rank.
  };
  Kind kind = Kind::replicate;
  int64_t dim = 0;  ///< Dimension of a shard; 0 otherwise.

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

/// The placements of a tensor on all axes of its layout, in the order in which they shard it: the first one shards the
/// whole tensor, the next ones shard the local shard. The layout makes no statement about axes that it does not name.
class Layout {
 public:
  Layout() = default;
  Layout(std::initializer_list<AxisPlacement> axes) : axes_(axes) {}

  /// Returns the placement on `axis`, or null if the layout does not name it.
  const Placement* find(const std::string& axis) const;
  /// Sets or replaces the placement on `axis`.
  void set(const std::string& axis, Placement placement);
  const std::vector<AxisPlacement>& axes() const { return axes_; }
  /// The axes with this kind of placement, in order.
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

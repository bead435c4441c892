// Typing rule for operators whose stated placements suffice: the collectives, and operators with collectives inside.
#include "lehr/base/error.h"
#include "lehr/shard/stated_rules.h"

namespace lehr::shard {

namespace {
// Returns advice for an operand whose placement is not the stated one.
std::string advice(const Placement& takes, const Operand& found, size_t axis, int64_t ranks) {
  using Asked = Placement::Kind;
  const Kind kind = found.type.kinds[axis];
  const bool whole = kind == Kind::constant || kind == Kind::replicate || kind == Kind::invariant;
  if (kind == Kind::partial) {
    return takes.kind == Asked::invariant ? "all_reduce is missing before it" : "reduce_scatter is missing before it";
  }
  switch (takes.kind) {
    case Asked::replicate:
      return kind == Kind::invariant ? "its gradient is partial, and nothing would sum it; enter_replicated is missing "
                                       "before it, or all_gather instead of gather_invariant"
                                     : "all_gather is missing before it";
    case Asked::invariant:
      return whole ? "the ranks do different work with it; use gather_invariant instead of all_gather"
                   : "gather_invariant is missing before it";
    case Asked::partial:
      return whole ? fmt::format(
                         "each of the {} ranks has all of it, so the sum would count it {} times; this collective is "
                         "superfluous",
                         ranks,
                         ranks)
                   : "the ranks have shards, not summands; a sum would mix them";
    case Asked::shard:
      return whole ? fmt::format(
                         "each of the {} ranks has all of it already, so the result would have it {} times; this "
                         "collective is superfluous, or take_shard is missing before it",
                         ranks,
                         ranks)
                   : "it is sharded on another dimension";
    case Asked::varying:
      break;
  }
  return fmt::format("each of the {} ranks would send the same; take_shard is missing before it", ranks);
}

void check_placement(const Placement& takes, const Operand& found, size_t axis, int64_t ranks) {
  using Asked = Placement::Kind;
  const Kind kind = found.type.kinds[axis];
  bool fits = false;
  switch (takes.kind) {
    case Asked::replicate:
      fits = kind == Kind::replicate || kind == Kind::constant;
      break;
    case Asked::invariant:
      fits = kind == Kind::invariant || kind == Kind::constant;
      break;
    case Asked::partial:
      fits = kind == Kind::partial;
      break;
    case Asked::shard:
      fits = kind == Kind::shard && found.type.dim_of(axis) == takes.dim;
      break;
    case Asked::varying:
      fits = kind == Kind::varying || kind == Kind::shard;
      break;
  }
  require(
      fits,
      "takes {} as {} on axis {}, found {}: {}",
      found.name,
      describe(takes),
      name_of(axis),
      describe(found.type, axis),
      advice(takes, found, axis, ranks));
}

Kind kind_of(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return Kind::replicate;
    case Placement::Kind::invariant:
      return Kind::invariant;
    case Placement::Kind::partial:
      return Kind::partial;
    case Placement::Kind::shard:
      return Kind::shard;
    case Placement::Kind::varying:
      break;
  }
  return Kind::varying;
}
}  // namespace

void resize(TensorType& type, const std::vector<int64_t>& shape) {
  type.dims.resize(shape.size(), {{}});
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const int64_t before = size_of(type.dims[dim]);
    Factor& first = type.dims[dim].front();
    if (before != shape[dim]) {
      if (before > 0 && shape[dim] * first.size % before == 0) {
        first.size = shape[dim] * first.size / before;
      } else {
        type.dims[dim] = {{.size = shape[dim], .axes = type.axes_of(dim)}};
      }
    }
  }
}

TensorType type_by_placements(const TypeChecker& checker, const Statement& statement, std::vector<Operand>& operands) {
  const AxisSet own = checker.axes_of(statement.ranks);
  TensorType type = operands[statement.like].type;
  const Linearity linearity = operands.size() == 1 ? Linearity::product : Linearity::none;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if ((own & set_of(axis)) == 0) {
      const Kind kind = combine(operands, axis, linearity);
      type.kinds[axis] = kind == Kind::shard && type.dim_of(axis) < 0 ? Kind::varying : kind;
      continue;
    }
    for (const Operand& one : operands) {
      check_placement(one.takes, one, axis, checker.ranks(axis));
    }
    const int64_t cut = type.dim_of(axis);
    require(
        cut < 0 || statement.gives.kind == Placement::Kind::shard ||
            (type.dims[static_cast<size_t>(cut)].front().axes & set_of(axis)) != 0,
        "joins shards of the inner one of the dimensions that were flattened into dimension {}; do it before that",
        cut);
    type.set(axis, kind_of(statement.gives));
  }
  resize(type, statement.shape);
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if ((own & set_of(axis)) != 0 && statement.gives.kind == Placement::Kind::shard) {
      type.cut(axis, static_cast<size_t>(statement.gives.dim));
    }
  }
  return type;
}

}  // namespace lehr::shard

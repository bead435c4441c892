// Rules by which operators combine the types of their operands.
#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/shard/tensor_type.h"

namespace lehr::shard {

namespace {
const Operand* find(const std::vector<Operand>& operands, size_t axis, Kind kind) {
  const auto found =
      std::find_if(operands.begin(), operands.end(), [&](const Operand& one) { return one.type.kinds[axis] == kind; });
  return found == operands.end() ? nullptr : &*found;
}

// Throws the error for an operator that combines invariant and rank-specific operands.
[[noreturn]] void fail_mixed(const Operand& invariant, const Operand& other, size_t axis) {
  const std::string& name = name_of(axis);
  if (other.parameter && other.type.kinds[axis] == Kind::replicate) {
    fail(
        "parameter {} is replicate on axis {}, but its ranks do the same work with it: its gradient, the same on all "
        "of them, would count once for each rank; lay it out as invariant",
        other.name,
        name);
  }
  if (invariant.parameter) {
    fail(
        "parameter {} is invariant on axis {}, but meets {}, which is {}: its gradient is a part of a sum on each "
        "rank, and nothing would sum it; lay it out as replicate",
        invariant.name,
        name,
        other.name,
        describe(other.type, axis));
  }
  fail(
      "{} is invariant on axis {}, but meets {}, which is {}: the gradient of the former would be a part of a sum on "
      "each rank; enter_replicated is missing before it, or the latter needs {}",
      invariant.name,
      name,
      other.name,
      describe(other.type, axis),
      other.type.kinds[axis] == Kind::shard ? "gather_invariant" : "to be gathered by gather_invariant");
}

Kind combine_partial(const std::vector<Operand>& operands, size_t axis, Linearity linearity) {
  const std::string& name = name_of(axis);
  const Operand& partial = *find(operands, axis, Kind::partial);
  require(
      linearity != Linearity::none,
      "takes {}, which is partial on axis {}: each rank has one summand, and the sum is needed here; reduce_scatter or "
      "all_reduce is missing before it",
      partial.name,
      name);
  for (const Operand& one : operands) {
    const Kind kind = one.type.kinds[axis];
    if (&one == &partial || (linearity == Linearity::sum && kind == Kind::partial)) {
      continue;
    }
    require(
        linearity != Linearity::sum,
        "adds {} ({}) to {}, which is partial on axis {}: it would count once for each rank, or be summed with other "
        "shards; reduce_scatter or all_reduce is missing before it",
        one.name,
        describe(one.type, axis),
        partial.name,
        name);
    require(
        kind == Kind::constant || kind == Kind::replicate,
        "multiplies {}, which is partial on axis {}, by {}, which is {}; reduce_scatter or all_reduce is missing "
        "before it",
        partial.name,
        name,
        one.name,
        describe(one.type, axis));
  }
  return Kind::partial;
}
}  // namespace

Kind combine(const std::vector<Operand>& operands, size_t axis, Linearity linearity) {
  if (find(operands, axis, Kind::partial) != nullptr) {
    return combine_partial(operands, axis, linearity);
  }
  const Operand* replicate = find(operands, axis, Kind::replicate);
  const Operand* shard = find(operands, axis, Kind::shard);
  const Operand* varying = find(operands, axis, Kind::varying);
  if (const Operand* invariant = find(operands, axis, Kind::invariant)) {
    for (const Operand* other : {replicate, shard, varying}) {
      if (other != nullptr) {
        fail_mixed(*invariant, *other, axis);
      }
    }
    return Kind::invariant;
  }
  return varying != nullptr     ? Kind::varying
         : shard != nullptr     ? Kind::shard
         : replicate != nullptr ? Kind::replicate
                                : Kind::constant;
}

namespace {
// Returns the factors of a dimension that several operands share.
TypedDim common_dim(const std::vector<const TypedDim*>& dims) {
  AxisSet all = 0;
  const TypedDim* best = dims.front();
  const auto axes_of = [](const TypedDim& dim) {
    AxisSet axes = 0;
    for (const Factor& factor : dim) {
      axes |= factor.axes;
    }
    return axes;
  };
  for (const TypedDim* dim : dims) {
    all |= axes_of(*dim);
    const bool larger = size_of(*dim) != 1 && size_of(*best) == 1;
    if (larger || (size_of(*dim) == size_of(*best) && dim->size() > best->size()) ||
        (size_of(*dim) == size_of(*best) && dim->size() == best->size() && axes_of(*dim) > axes_of(*best))) {
      best = dim;
    }
  }
  TypedDim result = *best;
  result.front().axes |= static_cast<AxisSet>(all & ~axes_of(result));
  return result;
}

void drop_axes_that_do_not_cut(TensorType& type) {
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if (type.kinds[axis] != Kind::shard) {
      type.set(axis, type.kinds[axis]);
    }
  }
}
}  // namespace

TensorType pointwise(std::vector<Operand> operands, Linearity linearity) {
  join_domains(operands);
  size_t rank = 0;
  for (const Operand& one : operands) {
    rank = std::max(rank, one.type.dims.size());
  }
  TensorType result;
  result.expert = !operands.empty() && operands.front().type.expert;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    result.kinds[axis] = combine(operands, axis, linearity);
    const Operand* first = nullptr;
    int64_t cut = -1;
    for (const Operand& one : operands) {
      if (one.type.kinds[axis] != Kind::shard) {
        continue;
      }
      const int64_t dim = one.type.dim_of(axis) + static_cast<int64_t>(rank - one.type.dims.size());
      require(
          first == nullptr || dim == cut,
          "{} is {} on axis {}, but {} is {}: shards of different dimensions do not match; all_gather is missing for "
          "one of them",
          first != nullptr ? first->name : "",
          first != nullptr ? describe(first->type, axis) : "",
          name_of(axis),
          one.name,
          describe(one.type, axis));
      first = &one;
      cut = dim;
    }
  }
  for (size_t dim = 0; dim < rank; ++dim) {
    std::vector<const TypedDim*> dims;
    for (const Operand& one : operands) {
      const size_t missing = rank - one.type.dims.size();
      if (dim >= missing) {
        dims.push_back(&one.type.dims[dim - missing]);
      }
    }
    result.dims.push_back(common_dim(dims));
  }
  drop_axes_that_do_not_cut(result);
  return result;
}

TensorType product(Operand a, Operand b, const ProductDims& dims) {
  std::vector<Operand> both{std::move(a), std::move(b)};
  join_domains(both);
  const TensorType &left = both[0].type, &right = both[1].type;
  const auto role = [](int64_t dim, bool first, const std::vector<std::pair<size_t, size_t>>& pairs) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (static_cast<int64_t>(first ? pairs[i].first : pairs[i].second) == dim) {
        return static_cast<int64_t>(i);
      }
    }
    return int64_t{-1};
  };
  TensorType result;
  result.expert = left.expert;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    Kind kind = combine(both, axis, Linearity::product);
    const int64_t in_left = left.dim_of(axis), in_right = right.dim_of(axis);
    const int64_t left_sum = role(in_left, true, dims.contracted), right_sum = role(in_right, false, dims.contracted);
    if (in_left >= 0 && in_right >= 0) {
      const bool summed = left_sum >= 0 && left_sum == right_sum;
      const int64_t left_batch = role(in_left, true, dims.batch);
      require(
          summed || (left_batch >= 0 && left_batch == role(in_right, false, dims.batch)),
          "{} is {} on axis {}, and {} is {}: their shards do not match; all_gather is missing for one of them",
          both[0].name,
          describe(left, axis),
          name_of(axis),
          both[1].name,
          describe(right, axis));
      kind = summed ? Kind::partial : kind;
    } else if (left_sum >= 0 || right_sum >= 0) {
      const Operand& part = left_sum >= 0 ? both[0] : both[1];
      const Operand& other = left_sum >= 0 ? both[1] : both[0];
      fail(
          "{} is {} on axis {}, which is the dimension that the matmul sums over, but {} is {}; all_gather is "
          "missing, or the latter must be sharded alike",
          part.name,
          describe(part.type, axis),
          name_of(axis),
          other.name,
          describe(other.type, axis));
    }
    result.kinds[axis] = kind;
  }
  for (const auto& [of_left, of_right] : dims.batch) {
    result.dims.push_back(common_dim({&left.dims[of_left], &right.dims[of_right]}));
  }
  for (const bool first : {true, false}) {
    const TensorType& type = first ? left : right;
    for (size_t dim = 0; dim < type.dims.size(); ++dim) {
      const auto at = static_cast<int64_t>(dim);
      if (role(at, first, dims.contracted) < 0 && role(at, first, dims.batch) < 0) {
        result.dims.push_back(type.dims[dim]);
      }
    }
  }
  drop_axes_that_do_not_cut(result);
  return result;
}

}  // namespace lehr::shard

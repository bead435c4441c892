#include "lehr/shard/tensor_type.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::shard {

int64_t size_of(const TypedDim& dim) {
  int64_t size = 1;
  for (const Factor& factor : dim) {
    size *= factor.size;
  }
  return size;
}

int64_t TensorType::dim_of(size_t axis) const {
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    if ((axes_of(dim) & set_of(axis)) != 0) {
      return static_cast<int64_t>(dim);
    }
  }
  return -1;
}

AxisSet TensorType::axes_of(size_t dim) const {
  AxisSet axes = 0;
  for (const Factor& factor : dims[dim]) {
    axes |= factor.axes;
  }
  return axes;
}

void TensorType::set(size_t axis, Kind kind) {
  kinds[axis] = kind;
  for (TypedDim& dim : dims) {
    for (Factor& factor : dim) {
      factor.axes &= static_cast<AxisSet>(~set_of(axis));
    }
  }
}

void TensorType::cut(size_t axis, size_t dim) {
  kinds[axis] = Kind::shard;
  dims[dim].front().axes |= set_of(axis);
}

TensorType constant_type(at::IntArrayRef sizes) {
  TensorType type;
  for (const int64_t size : sizes) {
    type.dims.push_back({{.size = size}});
  }
  return type;
}

const std::string& name_of(size_t axis) {
  const std::string* const names[] = {
      &mesh::axis::dp_replicate,
      &mesh::axis::dp_shard,
      &mesh::axis::cp,
      &mesh::axis::tp,
      &mesh::axis::ep_shard,
      &mesh::axis::ep};
  return *names[axis];
}

std::string names_of(AxisSet axes) {
  std::string text;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if ((axes & set_of(axis)) != 0) {
      text += (text.empty() ? "" : " and ") + name_of(axis);
    }
  }
  return text;
}

std::string describe(const TensorType& type, size_t axis) {
  switch (type.kinds[axis]) {
    case Kind::constant:
      return "the same on all ranks";
    case Kind::replicate:
      return "replicate";
    case Kind::invariant:
      return "invariant";
    case Kind::partial:
      return "partial";
    case Kind::shard:
      return fmt::format("shard({})", type.dim_of(axis));
    case Kind::varying:
      break;
  }
  return "varying";
}

TensorType reshaped(const TensorType& type, at::IntArrayRef sizes) {
  // All factors in order; adjacent ones that no axis shards are merged.
  std::vector<Factor> left;
  for (const TypedDim& dim : type.dims) {
    for (const Factor& factor : dim) {
      if (factor.axes == 0 && factor.size == 1) {
        continue;
      }
      if (factor.axes == 0 && !left.empty() && left.back().axes == 0) {
        left.back().size *= factor.size;
      } else {
        left.push_back(factor);
      }
    }
  }
  std::reverse(left.begin(), left.end());  // the next one is popped from the back
  TensorType result = type;
  result.dims.clear();
  for (const int64_t size : sizes) {
    TypedDim made;
    int64_t open = size;  // the part of the dimension that has no factor yet
    while (!left.empty()) {
      Factor& next = left.back();
      if (open == 1) {
        const bool heads_of_a_rank = size == 1 && made.empty() && next.axes != 0 && sizes.size() > type.dims.size();
        if (made.empty() && next.axes != 0 && next.size == 1) {
          made.push_back(next);
          left.pop_back();
        } else if (heads_of_a_rank) {
          made.push_back({.size = 1, .axes = std::exchange(next.axes, AxisSet{0})});
        }
        break;
      }
      if (next.size == 0 ? open == 0 : open % next.size == 0) {
        open = next.size == 0 ? 1 : open / next.size;
        made.push_back(next);
        left.pop_back();
      } else if (open > 0 && next.size % open == 0) {  // splits the factor; its outer part keeps the axes
        made.push_back({.size = open, .axes = std::exchange(next.axes, AxisSet{0})});
        next.size /= open;
        break;
      } else {
        fail(
            "views its input as {}, which splits a dimension inside the shard of a rank of {}",
            fmt::join(sizes.vec(), "x"),
            names_of(next.axes));
      }
    }
    if (made.empty()) {
      made.push_back({.size = size});
    }
    result.dims.push_back(std::move(made));
  }
  for (const Factor& factor : left) {  // of size 1
    if (!result.dims.empty()) {
      result.dims.back().back().axes |= factor.axes;
    }
  }
  return result;
}

namespace {
constexpr size_t kDense[] = {kDataShards, kContext, kTensor};
constexpr size_t kExpert[] = {kExpertShards, kExperts};

bool is_constant(const TensorType& type) {
  return std::all_of(type.kinds.begin(), type.kinds.end(), [](Kind kind) { return kind == Kind::constant; });
}
}  // namespace

void join_domains(std::vector<Operand>& operands) {
  const auto travelled =
      std::find_if(operands.begin(), operands.end(), [](const Operand& one) { return one.type.expert; });
  if (travelled == operands.end()) {
    return;
  }
  for (Operand& one : operands) {
    if (one.type.expert) {
      continue;
    }
    if (!is_constant(one.type)) {
      Kind shared = Kind::constant;
      bool uniform = true;
      for (const size_t axis : kDense) {
        const Kind kind = one.type.kinds[axis];
        uniform = uniform && kind != Kind::shard && kind != Kind::varying && kind != Kind::partial &&
                  (shared == Kind::constant || kind == Kind::constant || kind == shared);
        shared = kind == Kind::constant ? shared : kind;
        one.type.kinds[axis] = Kind::constant;
      }
      require(
          uniform,
          "{} belongs to the ranks of experts (axis ep), {} to those of tokens; tokens must be dispatched to their "
          "experts and back: apply shard::parallelize_experts",
          travelled->name,
          one.name);
      for (const size_t axis : kExpert) {
        one.type.kinds[axis] = travelled->type.kinds[axis] == Kind::constant ? Kind::constant : shared;
      }
    }
    one.type.expert = true;
  }
}

}  // namespace lehr::shard

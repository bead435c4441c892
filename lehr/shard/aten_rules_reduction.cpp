// Typing rules of ATen's reductions, matmuls and other operators that need all of a dimension.
#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/shard/aten_call.h"
#include "lehr/shard/stated_rules.h"

namespace lehr::shard {

namespace {
// Returns the dimensions that an argument names; all if it is none or empty.
std::vector<size_t> dims_of(const c10::IValue& argument, size_t rank) {
  std::vector<size_t> dims;
  if (argument.isInt()) {
    dims.push_back(wrapped(argument.toInt(), rank));
  } else if (argument.isIntList()) {
    for (const int64_t dim : argument.toIntVector()) {
      dims.push_back(wrapped(dim, rank));
    }
  }
  if (dims.empty()) {
    for (size_t dim = 0; dim < rank; ++dim) {
      dims.push_back(dim);
    }
  }
  return dims;
}

TensorType without(TensorType type, std::vector<size_t> dims, bool keep) {
  std::sort(dims.rbegin(), dims.rend());
  for (const size_t dim : dims) {
    if (keep) {
      type.dims[dim] = {{.size = 1}};
    } else {
      type.dims.erase(type.dims.begin() + static_cast<long>(dim));
    }
  }
  return type;
}

bool keeps(const AtenCall& call) {
  const c10::IValue& keep = call.arg("keepdim");
  return keep.isBool() && keep.toBool();
}

void need_whole(const Operand& input, const std::vector<size_t>& dims) {
  for (const size_t dim : dims) {
    const AxisSet axes = input.type.axes_of(dim);
    require(
        axes == 0,
        "needs all of dimension {}, but each rank of {} has a part of it only ({} is shard({})); all_gather is missing "
        "before it, or a sum over the ranks after it",
        dim,
        names_of(axes),
        input.name,
        dim);
  }
}

void sum_over_dims(AtenCall& call) {
  TensorType type = pointwise({call.operand(0)}, Linearity::sum);
  const auto dims = dims_of(call.arg("dim"), type.dims.size());
  for (const size_t dim : dims) {
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if ((type.axes_of(dim) & set_of(axis)) != 0) {
        type.set(axis, Kind::partial);
      }
    }
  }
  type = without(type, dims, keeps(call));
  call.run();
  call.give(type);
}

// Reductions that need whole dimensions and remove them.
void reduce(AtenCall& call) {
  const TensorType type = pointwise({call.operand(0)});
  const auto dims = dims_of(call.arg("dim"), type.dims.size());
  need_whole(call.operand(0), dims);
  call.run();
  call.give_all(without(type, dims, keeps(call)));
}

// Operators that need whole dimensions and keep them.
void along(AtenCall& call) {
  const TensorType type = pointwise({call.operand(0)});
  need_whole(call.operand(0), dims_of(call.arg("dim"), type.dims.size()));
  call.run();
  call.give_all(type);
}

void topk(AtenCall& call) {
  TensorType type = pointwise({call.operand(0)});
  const auto dims = dims_of(call.arg("dim"), type.dims.size());
  need_whole(call.operand(0), dims);
  call.run();
  type.dims[dims.front()] = {{.size = call.result_sizes()[dims.front()]}};
  call.give_all(type);
}

void linear(AtenCall& call) {
  const Operand input = call.operand(0), weight = call.operand(1);
  TensorType type = product(input, weight, {.contracted = {{input.type.dims.size() - 1, 1}}, .batch = {}});
  if (call.arg("bias").isTensor() && call.arg("bias").toTensor().defined()) {
    type = pointwise({{.type = type, .name = "the matmul"}, call.operand(2)}, Linearity::sum);
  }
  call.run();
  call.give(type);
}

TensorType matrix_product(const Operand& a, const Operand& b) {
  const size_t left = a.type.dims.size(), right = b.type.dims.size();
  ProductDims dims;
  dims.contracted = {{left - 1, right > 1 ? right - 2 : 0}};
  if (left <= 2 || right <= 2) {
    return product(a, b, dims);
  }
  require(left == right, "multiplies tensors of {} and {} dimensions, for which there is no rule", left, right);
  for (size_t dim = 0; dim + 2 < left; ++dim) {
    dims.batch.emplace_back(dim, dim);
  }
  return product(a, b, dims);
}

void matmul(AtenCall& call) {
  const TensorType type = matrix_product(call.operand(0), call.operand(1));
  call.run();
  call.give(type);
}

void addmm(AtenCall& call) {
  const TensorType type = matrix_product(call.operand(1), call.operand(2));
  const TensorType sum_type = pointwise({{.type = type, .name = "the matmul"}, call.operand(0)}, Linearity::sum);
  call.run();
  call.give(sum_type);
}

// Normalizes over the last dimensions.
void layer_norm(AtenCall& call) {
  const TensorType type = pointwise(call.operands());
  const size_t rank = type.dims.size();
  for (size_t i = 1; i <= call.arg("normalized_shape").toIntVector().size(); ++i) {
    need_whole(call.operand(0), {rank - i});
  }
  call.run();
  call.give(type);
}

// Takes (B, H, T, D), where ops::attention takes (B, T, H, D).
void scaled_dot_product_attention(AtenCall& call) {
  std::vector<Operand> operands;
  for (size_t i = 0; i < 3; ++i) {
    operands.push_back(call.operand(i));
    Operand& one = operands.back();
    const size_t rank = one.type.dims.size();
    require(rank == 4, "expected tensors of 4 dimensions, found {}", rank);
    std::swap(one.type.dims[1], one.type.dims[2]);
    one.stated = std::string(1, "qkv"[i]);
    one.name = one.stated;
  }
  check_attention(operands);
  TensorType type = operands[0].type;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    type.kinds[axis] = combine(operands, axis, Linearity::none);
  }
  std::swap(type.dims[1], type.dims[2]);
  type.dims[3] = operands[2].type.dims[3];
  call.run();
  call.give(type);
}
}  // namespace

void add_reduction_rules(AtenRules& rules) {
  rules["sum"] = sum_over_dims;
  for (const char* name :
       {"mean",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "any",
        "all",
        "prod",
        "logsumexp",
        "var",
        "std",
        "linalg_vector_norm",
        "norm"}) {
    rules[name] = reduce;
  }
  for (const char* name : {"_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "sort", "argsort", "flip"}) {
    rules[name] = along;
  }
  rules["layer_norm"] = rules["rms_norm"] = layer_norm;
  rules["scaled_dot_product_attention"] = scaled_dot_product_attention;
  rules["topk"] = topk;
  rules["linear"] = linear;
  rules["matmul"] = rules["mm"] = rules["bmm"] = rules["mv"] = matmul;
  rules["addmm"] = addmm;
}

}  // namespace lehr::shard

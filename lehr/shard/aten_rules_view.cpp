// Typing rules of ATen's views, permutations and concatenations.
#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/shard/aten_call.h"

namespace lehr::shard {

namespace {
void view(AtenCall& call) {
  const TensorType before = call.operand(0).type;
  call.run();
  call.give(reshaped(before, call.result_sizes()));
}

void expand(AtenCall& call) {
  TensorType type = call.operand(0).type;
  call.run();
  const auto sizes = call.result_sizes();
  type.dims.insert(type.dims.begin(), sizes.size() - type.dims.size(), TypedDim{{.size = 1}});
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (size_of(type.dims[dim]) != sizes[dim]) {
      type.dims[dim] = {{.size = sizes[dim], .axes = type.axes_of(dim)}};
    }
  }
  call.give(type);
}

void permute(AtenCall& call) {
  TensorType type = call.operand(0).type;
  const std::vector<TypedDim> before = type.dims;
  const size_t rank = before.size();
  if (call.name() == "permute") {
    const auto order = call.arg(1).toIntVector();
    for (size_t dim = 0; dim < rank; ++dim) {
      type.dims[dim] = before[wrapped(order[dim], rank)];
    }
  } else if (rank > 1) {
    const bool named = call.name() == "transpose";
    std::swap(
        type.dims[named ? wrapped(call.arg(1).toInt(), rank) : 0],
        type.dims[named ? wrapped(call.arg(2).toInt(), rank) : 1]);
  }
  call.run();
  call.give(type);
}

void unsqueeze(AtenCall& call) {
  TensorType type = call.operand(0).type;
  const size_t dim = wrapped(call.arg(1).toInt(), type.dims.size() + 1);
  type.dims.insert(type.dims.begin() + static_cast<long>(dim), TypedDim{{.size = 1}});
  call.run();
  call.give(type);
}

void squeeze(AtenCall& call) {
  TensorType type = call.operand(0).type;
  const size_t rank = type.dims.size();
  std::vector<size_t> dims;
  const c10::IValue& named = call.arg("dim");
  for (size_t dim = 0; dim < rank; ++dim) {
    const bool asked = named.isInt() ? wrapped(named.toInt(), rank) == dim : !named.isIntList();
    const bool listed = named.isIntList() && std::ranges::any_of(named.toIntVector(), [&](int64_t one) {
                          return wrapped(one, rank) == dim;
                        });
    if ((asked || listed) && call.arg(0).toTensor().size(static_cast<int64_t>(dim)) == 1 && type.axes_of(dim) == 0) {
      dims.push_back(dim);
    }
  }
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    type.dims.erase(type.dims.begin() + static_cast<long>(*dim));
  }
  call.run();
  call.give(type);
}

// Slices of a dimension. If the dimension is sharded, each rank would take a different slice of the whole.
void take_part(AtenCall& call) {
  const Operand input = call.operand(0);
  const size_t rank = input.type.dims.size();
  const c10::IValue& named = call.arg("dim");
  const size_t dim = wrapped(named.isInt() ? named.toInt() : 0, rank);
  const AxisSet axes = input.type.axes_of(dim);
  call.run();
  for (size_t i = 0; i < call.num_results(); ++i) {
    TensorType type = input.type;
    const auto sizes = call.result_sizes(i);
    const bool gone = sizes.size() < rank;
    if (gone || sizes[dim] != call.arg(0).toTensor().size(static_cast<int64_t>(dim))) {
      require(
          axes == 0,
          "takes a part of dimension {}, of which each rank of {} has a part only ({} is shard({})): each would take a "
          "different one; all_gather is missing before it",
          dim,
          names_of(axes),
          input.name,
          dim);
      if (gone) {
        type.dims.erase(type.dims.begin() + static_cast<long>(dim));
      } else {
        type.dims[dim] = {{.size = sizes[dim]}};
      }
    }
    call.give(type, i);
  }
}

void join(AtenCall& call, bool new_dim) {
  const c10::IValue& named = call.arg("dim");
  std::vector<Operand> operands = call.operands();
  size_t rank = 0;
  for (const Operand& one : operands) {
    rank = std::max(rank, one.type.dims.size());
  }
  const size_t dim = wrapped(named.isInt() ? named.toInt() : 0, rank + (new_dim ? 1 : 0));
  const AxisSet cut = new_dim ? AxisSet{0} : operands.front().type.axes_of(dim);
  for (Operand& one : operands) {
    if (!new_dim) {  // if all operands are sharded, so is the result, in an order of its own
      require(
          one.type.axes_of(dim) == cut,
          "joins tensors along dimension {}, of which each rank of {} has a part of some and all of others; all_gather "
          "is missing before it",
          dim,
          names_of(cut | one.type.axes_of(dim)));
      one.type.dims[dim] = {{.size = 1, .axes = cut}};
    }
  }
  TensorType type = pointwise(operands, Linearity::sum);
  call.run();
  if (new_dim) {
    type.dims.insert(type.dims.begin() + static_cast<long>(dim), TypedDim{});
  }
  type.dims[dim] = {{.size = call.result_sizes()[dim], .axes = cut}};
  call.give(type);
}
}  // namespace

void add_view_rules(AtenRules& rules) {
  for (const char* name : {"view", "_unsafe_view", "_reshape_alias", "reshape", "flatten", "unflatten"}) {
    rules[name] = view;
  }
  rules["expand"] = expand;
  rules["permute"] = rules["transpose"] = rules["t"] = permute;
  rules["unsqueeze"] = unsqueeze;
  rules["squeeze"] = squeeze;
  for (const char* name : {"slice", "narrow", "select", "split", "split_with_sizes", "unbind", "unsafe_split"}) {
    rules[name] = take_part;
  }
  rules["cat"] = [](AtenCall& call) { join(call, false); };
  rules["stack"] = [](AtenCall& call) { join(call, true); };
}

}  // namespace lehr::shard

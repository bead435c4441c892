// Typing rules of ATen's look-up operators.
#include "lehr/base/error.h"
#include "lehr/shard/aten_call.h"

namespace lehr::shard {

namespace {
// Rows of a table. If the table is shard(0), the result is partial: code that shards a table must return zeros for ids
// of other ranks' rows, so that the sum over ranks is the result.
void embedding(AtenCall& call) {
  Operand table = call.operand(0);
  const Operand ids = call.operand(1);
  const AxisSet spread = table.type.axes_of(0);
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if ((spread & set_of(axis)) != 0) {
      require(
          ids.type.kinds[axis] == Kind::constant,
          "table {} has other rows on each rank of {}, but the ids are {} there; they must be the same on all ranks",
          table.name,
          name_of(axis),
          describe(ids.type, axis));
      table.type.set(axis, Kind::partial);
    }
  }
  TensorType type = ids.type;
  const std::vector<Operand> both{table, ids};
  for (size_t axis = 0; axis < kAxes; ++axis) {
    type.kinds[axis] = combine(both, axis, Linearity::product);
  }
  type.dims.push_back(table.type.dims[1]);
  for (size_t axis = 0; axis < kAxes; ++axis) {
    require(
        table.type.dim_of(axis) < 0 || ids.type.dim_of(axis) < 0,
        "table {} and the ids are both sharded on axis {}",
        table.name,
        name_of(axis));
  }
  call.replace_by(call.arg(0).toTensor().scalar_type(), type);
}

void gather(AtenCall& call) {
  Operand input = call.operand(0);
  const size_t dim = wrapped(call.arg(1).toInt(), input.type.dims.size());
  require(
      input.type.axes_of(dim) == 0,
      "looks up along dimension {}, of which each rank of {} has a part only; all_gather is missing before it",
      dim,
      names_of(input.type.axes_of(dim)));
  input.type.dims[dim] = {{.size = 1}};
  const Operand index = call.operand(2);
  TensorType type = pointwise({input, index});
  call.run();
  type.dims[dim] = index.type.dims[dim];
  call.give(type);
}

void index_select(AtenCall& call) {
  const Operand input = call.operand(0), index = call.operand(2);
  const size_t dim = wrapped(call.arg(1).toInt(), input.type.dims.size());
  require(
      input.type.axes_of(dim) == 0,
      "looks up along dimension {}, of which each rank of {} has a part only; all_gather is missing before it",
      dim,
      names_of(input.type.axes_of(dim)));
  TensorType type = input.type;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    type.kinds[axis] = combine({input, index}, axis, Linearity::product);
    require(
        input.type.dim_of(axis) < 0 || index.type.dim_of(axis) < 0,
        "{} and the index are both sharded on axis {}",
        input.name,
        name_of(axis));
  }
  type.dims[dim] = index.type.dims[0];
  call.replace_by(call.arg(0).toTensor().scalar_type(), type);
}
}  // namespace

void add_indexing_rules(AtenRules& rules) {
  rules["embedding"] = embedding;
  rules["gather"] = gather;
  rules["index_select"] = index_select;
}

}  // namespace lehr::shard

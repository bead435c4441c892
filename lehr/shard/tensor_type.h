// The type of a tensor while a plan is checked: how it lies on every axis of the mesh, and the rules by which operators
// combine such types. docs/parallelism.md, "Typed layouts", says what the kinds mean.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lehr/base/layout.h"
#include "lehr/mesh/distributed_context.h"

namespace lehr::shard {

/// The axes that types know. The first four are of the dense domain; expert tensors have dp_replicate, ep_shard, ep.
enum Axis : uint8_t { kReplicas, kDataShards, kContext, kTensor, kExpertShards, kExperts, kAxes };
using AxisSet = uint8_t;  // a bit for each axis
inline AxisSet set_of(size_t axis) {
  return static_cast<AxisSet>(1U << axis);
}

/// Placement::Kind, and `constant`: the same on all ranks and without a gradient, which fits everywhere.
enum class Kind : uint8_t { constant, replicate, invariant, partial, shard, varying };

/// A factor of a dimension, and the axes whose ranks have parts of it. A dimension (B*T) has two where it was
/// flattened.
struct Factor {
  int64_t size = 1;  ///< On this rank.
  AxisSet axes = 0;
};
using TypedDim = std::vector<Factor>;

/// Its size on this rank.
int64_t size_of(const TypedDim& dim);

/// How a tensor lies on the mesh.
struct TensorType {
  bool expert = false;  ///< Of the expert domain, and not the same along all its axes.
  std::array<Kind, kAxes> kinds{};
  std::vector<TypedDim> dims;  ///< An axis stands in a factor if and only if its kind is shard.

  /// The dimension that the axis cuts; -1 if it cuts none.
  int64_t dim_of(size_t axis) const;
  /// All axes that cut dimension `dim`.
  AxisSet axes_of(size_t dim) const;
  /// Makes the axis say `kind`, which is not shard, and cut nothing.
  void set(size_t axis, Kind kind);
  /// The same with dimension `dim` cut along an axis that cut nothing; the size is the rank's already.
  void cut(size_t axis, size_t dim);
};

/// A tensor that all ranks have, of those sizes.
TensorType constant_type(at::IntArrayRef sizes);

/// "invariant", "shard(1)"
std::string describe(const TensorType& type, size_t axis);
/// The name of the axis: "tp".
const std::string& name_of(size_t axis);
/// "cp", "dp_shard and tp"
std::string names_of(AxisSet axes);

/// What an operator takes.
struct Operand {
  TensorType type = {};
  std::string name = {};    ///< In messages: "q", "the input", "its weight".
  bool parameter = false;   ///< Then `name` is that of a parameter.
  std::string stated = {};  ///< Its name in a statement.
  Placement takes = {};     ///< Its placement in a statement.
};

/// How an operator treats sums that are not summed yet.
enum class Linearity {
  none,     ///< It needs the sum.
  sum,      ///< The sum of its operands: all of them partial, or none.
  product,  ///< Linear in each operand: one may be partial.
};

/// The kind of the result on an axis that cuts no operand, or the same dimension of all that it cuts. Throws a usage
/// error that says what is missing.
Kind combine(const std::vector<Operand>& operands, size_t axis, Linearity linearity);

/// The type of a result whose dimensions are those of its operands, aligned at the last, broadcast.
TensorType pointwise(std::vector<Operand> operands, Linearity linearity = Linearity::none);

/// Which dimensions of a product's operands meet.
struct ProductDims {
  std::vector<std::pair<size_t, size_t>> contracted;  ///< Of a and b.
  std::vector<std::pair<size_t, size_t>> batch;  ///< Of a and b; first in the result, before the others of a and of b.
};
TensorType product(Operand a, Operand b, const ProductDims& dims);

/// The same elements, row by row, in other sizes.
TensorType reshaped(const TensorType& type, at::IntArrayRef sizes);

/// Brings tensors of both domains into one, where that is possible. Throws a usage error otherwise.
void join_domains(std::vector<Operand>& operands);

}  // namespace lehr::shard

// Type of a tensor in the plan check: its placement on every axis of the mesh, and the rules by which operators combine
// such types. docs/parallelism.md, "Typed layouts", defines the kinds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lehr/base/layout.h"
#include "lehr/mesh/distributed_context.h"

namespace lehr::shard {

/// The mesh axes of a type. The first four form the dense domain; expert tensors have dp_replicate, ep_shard and ep.
enum Axis : uint8_t { kReplicas, kDataShards, kContext, kTensor, kExpertShards, kExperts, kAxes };
using AxisSet = uint8_t;  // one bit per axis
inline AxisSet set_of(size_t axis) {
  return static_cast<AxisSet>(1U << axis);
}

/// Placement::Kind, and `constant`: the same on all ranks and without a gradient, accepted everywhere.
enum class Kind : uint8_t { constant, replicate, invariant, partial, shard, varying };

/// A factor of a dimension, and the axes that shard it. A dimension that was flattened from (B, T) has two factors.
struct Factor {
  int64_t size = 1;  ///< On this rank.
  AxisSet axes = 0;
};
using TypedDim = std::vector<Factor>;

/// Returns the size of the dimension on this rank.
int64_t size_of(const TypedDim& dim);

/// Placement of a tensor on all axes of the mesh.
struct TensorType {
  bool expert = false;  ///< In the expert domain, and not the same along all its axes.
  std::array<Kind, kAxes> kinds{};
  std::vector<TypedDim> dims;  ///< An axis is in a factor if and only if its kind is shard.

  /// Returns the dimension that the axis shards; -1 if none.
  int64_t dim_of(size_t axis) const;
  /// Returns all axes that shard dimension `dim`.
  AxisSet axes_of(size_t dim) const;
  /// Sets the kind of the axis to `kind`, which is not shard; the axis then shards no dimension.
  void set(size_t axis, Kind kind);
  /// Shards dimension `dim` along an axis that sharded none. Sizes stay: they are this rank's already.
  void cut(size_t axis, size_t dim);
};

/// Returns the type of a constant that all ranks have, of those sizes.
TensorType constant_type(at::IntArrayRef sizes);

/// "invariant", "shard(1)"
std::string describe(const TensorType& type, size_t axis);
/// The name of the axis: "tp".
const std::string& name_of(size_t axis);
/// "cp", "dp_shard and tp"
std::string names_of(AxisSet axes);

/// Input of an operator.
struct Operand {
  TensorType type = {};
  std::string name = {};    ///< In messages: "q", "the input", "its weight".
  bool parameter = false;   ///< True if `name` is that of a parameter.
  std::string stated = {};  ///< Its name in a statement.
  Placement takes = {};     ///< Its placement in a statement.
};

/// Linearity of an operator, which decides whether it accepts partial operands.
enum class Linearity {
  none,     ///< Not linear: no operand may be partial.
  sum,      ///< The sum of its operands: all of them partial, or none.
  product,  ///< Linear in each operand: one may be partial.
};

/// Returns the kind of the result on `axis`, which shards the same dimension of all operands that it shards, or none.
/// Throws a usage error that names the missing collective.
Kind combine(const std::vector<Operand>& operands, size_t axis, Linearity linearity);

/// Returns the type of an elementwise result: operands are aligned at the last dimension and broadcast.
TensorType pointwise(std::vector<Operand> operands, Linearity linearity = Linearity::none);

/// Pairs of dimensions of a matmul's operands.
struct ProductDims {
  std::vector<std::pair<size_t, size_t>> contracted;  ///< Dimensions of a and b that are summed over.
  std::vector<std::pair<size_t, size_t>> batch;       ///< Batch dimensions of a and b, which come first in the result.
};
TensorType product(Operand a, Operand b, const ProductDims& dims);

/// Returns the type of a view of the same elements, in row-major order, with other sizes.
TensorType reshaped(const TensorType& type, at::IntArrayRef sizes);

/// Brings operands of both domains into one, if that is possible. Throws a usage error otherwise.
void join_domains(std::vector<Operand>& operands);

}  // namespace lehr::shard

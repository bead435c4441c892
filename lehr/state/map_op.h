// The operations of state maps: how a tensor of a checkpoint is cut, joined or turned on its way to a parameter. None
// computes: every element of a result is an element of an input, so each operation has an inverse, and any box of a
// result can be made from boxes of the inputs alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"
#include "lehr/state/dtype.h"

namespace lehr::state {

/// Shape and type of a tensor that need not exist.
struct TensorSpec {
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  bool operator==(const TensorSpec&) const = default;
};

// Dimensions may be negative, counted from the end as torch does: those of Stack and Unsqueeze in the result, all
// others in the input.

/// N tensors of one shape to one tensor with a new dimension `dim` of size N.
struct Stack {
  int64_t dim = 0;
};
/// Inverse of Stack.
struct Unstack {
  int64_t dim = 0;
};
/// Tensors of these sizes in `dim`, one behind the other.
struct Concatenate {
  int64_t dim = 0;
  std::vector<int64_t> sizes;
};
/// Inverse of Concatenate.
struct Split {
  int64_t dim = 0;
  std::vector<int64_t> sizes;
};
/// Swaps two dimensions.
struct Transpose {
  int64_t dim0 = 0;
  int64_t dim1 = 1;
};
/// Takes away dimension `dim`, which has size 1.
struct Squeeze {
  int64_t dim = 0;
};
/// Adds a dimension `dim` of size 1.
struct Unsqueeze {
  int64_t dim = 0;
};
/// Elements [range) of dimension `dim`, which has `size`.
struct Slice {
  int64_t dim = 0;
  Range range;
  int64_t size = 0;
};
/// Inverse of Slice: the input becomes elements [range) of a dimension of that size; the others are somebody else's.
struct Place {
  int64_t dim = 0;
  Range range;
  int64_t size = 0;
};
/// One tensor under several names.
struct Tie {};
/// Inverse of Tie: several tensors that are equal become one. The first is taken, the others are not read.
struct Untie {};

using MapOp = std::variant<Stack, Unstack, Concatenate, Split, Transpose, Squeeze, Unsqueeze, Slice, Place, Tie, Untie>;

/// As torch would say it: "stack 0", "split 1 [768, 768]", "slice 0 [0:4 of 16]".
std::string describe(const MapOp& op);
MapOp inverse(const MapOp& op);

/// What stands at the end of an operation: shape and type, and the part of it that is known (all, unless a Place left
/// the rest to others).
struct TensorKnown {
  TensorSpec spec;
  Box known;
};

/// Shapes and types of an operation's results. Throws a usage error that says what does not fit, where input i is
/// called `name_of(i)`.
std::vector<TensorKnown> infer(
    const MapOp& op,
    const std::vector<const TensorKnown*>& inputs,
    size_t num_outputs,
    const std::function<std::string(size_t)>& name_of);

/// What an operation needs of one input for a part of a result: `box` of it goes to the `place` within that part.
struct Demand {
  size_t input = 0;
  Box box;
  Box place;
};

/// What must be read for `box` of result `output`. `input_rank` is that of every input.
std::vector<Demand> pull_back(const MapOp& op, size_t output, const Box& box, int64_t input_rank);

/// A tensor that has the shape of a demand's place, seen with the dimensions of the operation's input.
at::Tensor as_input(const MapOp& op, const at::Tensor& result, int64_t input_rank);
/// A tensor that has the shape of a demand's box, seen with the dimensions of the operation's result.
at::Tensor as_result(const MapOp& op, const at::Tensor& input);
/// Such a box, counted from that of the demand, with the dimensions of the operation's result.
Box as_result(const MapOp& op, Box input, int64_t input_rank);

}  // namespace lehr::state

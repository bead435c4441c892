// Operations of state maps: splitting, joining and reordering of tensors between a checkpoint and parameters. None of
// them computes: every element of a result is an element of an input, so each operation has an inverse, and any region
// of a result can be made from regions of the inputs alone.
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

/// Shape and dtype of a tensor that need not exist.
struct TensorSpec {
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  bool operator==(const TensorSpec&) const = default;
};

// Dimensions may be negative, counted from the end as in torch: those of Stack and Unsqueeze refer to the result, all
// others to the input.

/// Stacks N tensors of one shape along a new dimension `dim` of size N.
struct Stack {
  int64_t dim = 0;
};
/// Inverse of Stack.
struct Unstack {
  int64_t dim = 0;
};
/// Concatenates tensors of these sizes in `dim`.
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
/// Removes dimension `dim`, which has size 1.
struct Squeeze {
  int64_t dim = 0;
};
/// Adds a dimension `dim` of size 1.
struct Unsqueeze {
  int64_t dim = 0;
};
/// Takes the elements [range) of dimension `dim`, which has `size`.
struct Slice {
  int64_t dim = 0;
  Range range;
  int64_t size = 0;
};
/// Inverse of Slice: the input becomes the elements [range) of a dimension of that size; the map does not produce the
/// rest.
struct Place {
  int64_t dim = 0;
  Range range;
  int64_t size = 0;
};
/// One tensor under several names.
struct Tie {};
/// Inverse of Tie: several equal tensors become one. The first is used, the others are not read.
struct Untie {};

/// Any of the operations.
using MapOp = std::variant<Stack, Unstack, Concatenate, Split, Transpose, Squeeze, Unsqueeze, Slice, Place, Tie, Untie>;

/// Formats an operation in torch's terms: "stack 0", "split 1 [768, 768]", "slice 0 [0:4 of 16]".
std::string describe(const MapOp& op);
/// Returns the operation that undoes `op`.
MapOp inverse(const MapOp& op);

/// The result of an operation: shape and dtype, and the region that is known (all of it, unless a Place leaves the rest
/// undefined).
struct TensorKnown {
  TensorSpec spec;
  Box known;
};

/// Infers shapes and dtypes of an operation's results. Throws a usage error for inputs that do not fit; input i is
/// named `name_of(i)`.
std::vector<TensorKnown> infer(
    const MapOp& op,
    const std::vector<const TensorKnown*>& inputs,
    size_t num_outputs,
    const std::function<std::string(size_t)>& name_of);

/// The input region that an operation needs for a region of a result: `box` of the input becomes `place` within that
/// region.
struct Demand {
  size_t input = 0;
  Box box;
  Box place;
};

/// Returns the input regions needed for `box` of result `output`. `input_rank` is the number of dimensions of every
/// input.
std::vector<Demand> pull_back(const MapOp& op, size_t output, const Box& box, int64_t input_rank);

/// Converts a tensor with the shape of a demand's place to the dimensions of the operation's input.
at::Tensor as_input(const MapOp& op, const at::Tensor& result, int64_t input_rank);
/// Converts a tensor with the shape of a demand's box to the dimensions of the operation's result.
at::Tensor as_result(const MapOp& op, const at::Tensor& input);
/// Converts a region, relative to the demand's box, to the dimensions of the operation's result.
Box as_result(const MapOp& op, Box input, int64_t input_rank);

}  // namespace lehr::state

// How one parameter of a pruned model is made of its parent's: elements are picked, blanked or averaged. Knows no files
// and no layers.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"

namespace lehr::prune {

/// Element i of dimension `dim` is the parent's element indices[i], or zeros where that is kZeros.
struct Pick {
  static constexpr int64_t kZeros = -1;
  int64_t dim = 0;
  std::vector<int64_t> indices;
};

/// A tensor of experts (E, ..., ...): expert i is the parent's experts[i], of which `channels[i]` are picked in
/// dimension `dim`; all if `channels` is empty.
struct PickOfExperts {
  std::vector<int64_t> experts;
  int64_t dim = 1;
  std::vector<std::vector<int64_t>> channels = {};
};

/// The first dimension is one of blocks of `block` rows; block i is the mean of the parent's blocks i * count to
/// (i + 1) * count. Sums are in float64.
struct Average {
  int64_t block = 1;
  int64_t count = 1;
};

struct ParameterCut {
  std::variant<Pick, PickOfExperts, Average> how;
  double factor = 1;  ///< On every element; products are in float64.
};

/// The child's shape.
std::vector<int64_t> shape_after(const ParameterCut& cut, std::vector<int64_t> parent);

/// Reads a box of the parent's parameter; the result is not written to.
using ReadBox = std::function<at::Tensor(const Box& box)>;

/// That box of the child's parameter, of type `type`, which is the parent's too. Of the parent it asks for no rows
/// before the first or behind the last that the box is made of, and for no other expert.
at::Tensor apply(const ParameterCut& cut, const Box& box, at::ScalarType type, const ReadBox& read);

/// `blocks` as rows, `size` each: {2, 0} with 3 is {6, 7, 8, 0, 1, 2}; Pick::kZeros stays.
std::vector<int64_t> rows_of_blocks(const std::vector<int64_t>& blocks, int64_t size);

}  // namespace lehr::prune

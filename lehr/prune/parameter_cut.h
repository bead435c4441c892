// Construction of one parameter of a pruned model from its parent's: elements are picked, zeroed or averaged.
// Independent of files and layers.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"

namespace lehr::prune {

/// Element i of dimension `dim` is the parent's element indices[i], or zeros if that is kZeros.
struct Pick {
  static constexpr int64_t kZeros = -1;
  int64_t dim = 0;
  std::vector<int64_t> indices;
};

/// For a tensor of experts (E, ..., ...): expert i is the parent's experts[i]. Dimension `dim` keeps `channels[i]` of
/// it, or all channels if `channels` is empty.
struct PickOfExperts {
  std::vector<int64_t> experts;
  int64_t dim = 1;
  std::vector<std::vector<int64_t>> channels = {};
};

/// Averages blocks of `block` rows of the first dimension: block i is the mean of the parent's blocks i * count to (i +
/// 1) * count - 1. Sums are in float64.
struct Average {
  int64_t block = 1;
  int64_t count = 1;
};

/// The change of one parameter.
struct ParameterCut {
  std::variant<Pick, PickOfExperts, Average> how;
  double factor = 1;  ///< Factor of every element, multiplied in float64.
};

/// Returns the child's shape.
std::vector<int64_t> shape_after(const ParameterCut& cut, std::vector<int64_t> parent);

/// Reads a region of the parent's parameter. The caller does not modify the result.
using ReadBox = std::function<at::Tensor(const Box& box)>;

/// Returns a region of the child's parameter in dtype `type`, which is the parent's dtype too. Reads from the parent
/// only the range of rows from the first to the last one needed, and only the needed experts.
at::Tensor apply(const ParameterCut& cut, const Box& box, at::ScalarType type, const ReadBox& read);

/// Expands `blocks` of `size` rows into row indices: {2, 0} with size 3 is {6, 7, 8, 0, 1, 2}; Pick::kZeros stays.
std::vector<int64_t> rows_of_blocks(const std::vector<int64_t>& blocks, int64_t size);

}  // namespace lehr::prune

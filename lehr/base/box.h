// Parts of tensors: what a rank holds of a parameter, what a map reads of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr {

/// The elements [begin, end) of a dimension.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
/// A part of a tensor: a range for each dimension.
using Box = std::vector<Range>;

/// All of a tensor of that shape.
Box whole_box(const std::vector<int64_t>& shape);
/// The sizes of a box.
std::vector<int64_t> shape_of(const Box& box);
/// "[0:4, 2:3]"
std::string describe(const Box& box);
/// The view of that part.
at::Tensor narrow_to(const at::Tensor& tensor, const Box& box);

/// The part of `range` that chunk `index` of `count` is: all chunks have the same size, but for the last ones, which
/// are shorter or empty (as torch.chunk cuts).
Range chunk(const Range& range, int64_t index, int64_t count);

/// A stretch of a box's elements that is one stretch of the whole tensor too (both in row-major order).
struct BoxRun {
  int64_t local = 0;   ///< First element within the box.
  int64_t global = 0;  ///< First element within the whole tensor.
  int64_t count = 0;
};
/// A box of a tensor of that shape as the fewest runs, in order.
std::vector<BoxRun> runs_of(const Box& box, const std::vector<int64_t>& shape);

}  // namespace lehr

// Ranges and boxes: axis-aligned regions of tensors, such as the shard of a rank or the part of a file to read.
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
/// A region of a tensor: one range per dimension.
using Box = std::vector<Range>;

/// The box that covers a whole tensor of this shape.
Box whole_box(const std::vector<int64_t>& shape);
/// The sizes of a box.
std::vector<int64_t> shape_of(const Box& box);
/// "[0:4, 2:3]"
std::string describe(const Box& box);
/// Returns the view of `tensor` that the box covers.
at::Tensor narrow_to(const at::Tensor& tensor, const Box& box);

/// The range of chunk `index` when `range` is cut into `count` chunks as by torch.chunk: all chunks have the same size,
/// except the last ones, which are smaller or empty.
Range chunk(const Range& range, int64_t index, int64_t count);

/// A run of elements that is contiguous both in the box and in the whole tensor (row-major order).
struct BoxRun {
  int64_t local = 0;   ///< Offset of the first element in the box.
  int64_t global = 0;  ///< Offset of the first element in the whole tensor.
  int64_t count = 0;
};
/// Splits a box of a tensor of this shape into the fewest runs, in order.
std::vector<BoxRun> runs_of(const Box& box, const std::vector<int64_t>& shape);

}  // namespace lehr

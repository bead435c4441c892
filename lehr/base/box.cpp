#include "lehr/base/box.h"

#include <fmt/format.h>

#include <algorithm>

namespace lehr {

Box whole_box(const std::vector<int64_t>& shape) {
  Box box;
  for (const int64_t size : shape) {
    box.push_back({0, size});
  }
  return box;
}

std::vector<int64_t> shape_of(const Box& box) {
  std::vector<int64_t> shape;
  for (const Range& range : box) {
    shape.push_back(range.size());
  }
  return shape;
}

std::string describe(const Box& box) {
  std::string text;
  for (const Range& range : box) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", range.begin, range.end);
  }
  return "[" + text + "]";
}

at::Tensor narrow_to(const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor;
  for (size_t dim = 0; dim < box.size(); ++dim) {
    const auto d = static_cast<int64_t>(dim);
    if (box[dim].size() != part.size(d)) {
      part = part.narrow(d, box[dim].begin, box[dim].size());
    }
  }
  return part;
}

Range chunk(const Range& range, int64_t index, int64_t count) {
  const int64_t size = (range.size() + count - 1) / count;
  const int64_t begin = std::min(range.end, range.begin + index * size);
  return {begin, std::min(range.end, begin + size)};
}

std::vector<BoxRun> runs_of(const Box& box, const std::vector<int64_t>& shape) {
  // A run covers all trailing dimensions that the box covers whole, and the dimension before them.
  size_t inner = box.size();
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= box[inner].size();
    if (box[inner].size() != shape[inner]) {
      break;
    }
  }
  int64_t count = 1;
  for (size_t dim = 0; dim < inner; ++dim) {
    count *= box[dim].size();
  }
  std::vector<BoxRun> runs;
  if (run == 0 || count == 0) {
    return runs;
  }
  std::vector<int64_t> index(inner, 0);
  for (int64_t number = 0; number < count; ++number) {
    int64_t global = 0;
    for (size_t dim = 0; dim < box.size(); ++dim) {
      global = global * shape[dim] + box[dim].begin + (dim < inner ? index[dim] : 0);
    }
    runs.push_back({.local = number * run, .global = global, .count = run});
    for (size_t dim = inner; dim-- > 0;) {
      if (++index[dim] < box[dim].size()) {
        break;
      }
      index[dim] = 0;
    }
  }
  return runs;
}

}  // namespace lehr

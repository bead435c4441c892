// Regions of results as regions of inputs: the basis of partial reads and of writes by several ranks.
#include <algorithm>

#include "lehr/state/map_op.h"

namespace lehr::state {

namespace {
Range moved(const Range& range, int64_t by) {
  return {range.begin + by, range.end + by};
}

// Returns a box at the origin with the sizes of `box`.
Box to_origin(const Box& box) {
  Box place;
  place.reserve(box.size());
  for (const Range& range : box) {
    place.push_back({0, range.size()});
  }
  return place;
}

struct PullBack {
  size_t output;
  const Box& box;
  int64_t input_rank;

  size_t dim_of(int64_t dim, int64_t more = 0) const {
    return static_cast<size_t>(dim < 0 ? dim + input_rank + more : dim);
  }
  // The region comes from a single input.
  std::vector<Demand> from_one(Box needed) const {
    return {{.input = 0, .box = std::move(needed), .place = to_origin(box)}};
  }
  Box inserted(size_t dim, const Range& range) const {
    Box result = box;
    result.insert(result.begin() + static_cast<long>(dim), range);
    return result;
  }
  Box erased(size_t dim) const {
    Box result = box;
    result.erase(result.begin() + static_cast<long>(dim));
    return result;
  }
  std::vector<Demand> shifted(size_t dim, int64_t by) const {
    Box needed = box;
    needed[dim] = moved(needed[dim], by);
    return from_one(std::move(needed));
  }

  std::vector<Demand> operator()(const Stack& o) const {
    const size_t dim = dim_of(o.dim, 1);
    std::vector<Demand> demands;
    for (int64_t i = box[dim].begin; i < box[dim].end; ++i) {
      Box place = to_origin(box);
      place[dim] = {i - box[dim].begin, i - box[dim].begin + 1};
      demands.push_back({.input = static_cast<size_t>(i), .box = erased(dim), .place = std::move(place)});
    }
    return demands;
  }
  std::vector<Demand> operator()(const Unstack& o) const {
    const auto index = static_cast<int64_t>(output);
    return from_one(inserted(dim_of(o.dim), {index, index + 1}));
  }
  std::vector<Demand> operator()(const Concatenate& o) const {
    const size_t dim = dim_of(o.dim);
    std::vector<Demand> demands;
    int64_t begin = 0;
    for (size_t i = 0; i < o.sizes.size(); ++i) {
      const Range common{std::max(begin, box[dim].begin), std::min(begin + o.sizes[i], box[dim].end)};
      if (common.size() > 0) {
        Demand demand{.input = i, .box = box, .place = to_origin(box)};
        demand.box[dim] = moved(common, -begin);
        demand.place[dim] = moved(common, -box[dim].begin);
        demands.push_back(std::move(demand));
      }
      begin += o.sizes[i];
    }
    return demands;
  }
  std::vector<Demand> operator()(const Split& o) const {
    int64_t begin = 0;
    for (size_t i = 0; i < output; ++i) {
      begin += o.sizes[i];
    }
    return shifted(dim_of(o.dim), begin);
  }
  std::vector<Demand> operator()(const Transpose& o) const {
    Box needed = box;
    std::swap(needed[dim_of(o.dim0)], needed[dim_of(o.dim1)]);
    return from_one(std::move(needed));
  }
  std::vector<Demand> operator()(const Squeeze& o) const { return from_one(inserted(dim_of(o.dim), {0, 1})); }
  std::vector<Demand> operator()(const Unsqueeze& o) const { return from_one(erased(dim_of(o.dim, 1))); }
  std::vector<Demand> operator()(const Slice& o) const { return shifted(dim_of(o.dim), o.range.begin); }
  // Only known regions are requested.
  std::vector<Demand> operator()(const Place& o) const { return shifted(dim_of(o.dim), -o.range.begin); }
  std::vector<Demand> operator()(const Tie&) const { return from_one(box); }
  std::vector<Demand> operator()(const Untie&) const { return from_one(box); }
};
}  // namespace

std::vector<Demand> pull_back(const MapOp& op, size_t output, const Box& box, int64_t input_rank) {
  return std::visit(PullBack{output, box, input_rank}, op);
}

at::Tensor as_input(const MapOp& op, const at::Tensor& result, int64_t input_rank) {
  if (const auto* o = std::get_if<Stack>(&op)) {
    return result.squeeze(o->dim < 0 ? o->dim + input_rank + 1 : o->dim);
  }
  if (const auto* o = std::get_if<Unsqueeze>(&op)) {
    return result.squeeze(o->dim < 0 ? o->dim + input_rank + 1 : o->dim);
  }
  if (const auto* o = std::get_if<Unstack>(&op)) {
    return result.unsqueeze(o->dim < 0 ? o->dim + input_rank : o->dim);
  }
  if (const auto* o = std::get_if<Squeeze>(&op)) {
    return result.unsqueeze(o->dim < 0 ? o->dim + input_rank : o->dim);
  }
  if (const auto* o = std::get_if<Transpose>(&op)) {
    return result.transpose(o->dim0, o->dim1);
  }
  return result;
}

at::Tensor as_result(const MapOp& op, const at::Tensor& input) {
  if (const auto* o = std::get_if<Stack>(&op)) {
    return input.unsqueeze(o->dim);
  }
  if (const auto* o = std::get_if<Unsqueeze>(&op)) {
    return input.unsqueeze(o->dim);
  }
  if (const auto* o = std::get_if<Unstack>(&op)) {
    return input.squeeze(o->dim);
  }
  if (const auto* o = std::get_if<Squeeze>(&op)) {
    return input.squeeze(o->dim);
  }
  if (const auto* o = std::get_if<Transpose>(&op)) {
    return input.transpose(o->dim0, o->dim1);
  }
  return input;
}

Box as_result(const MapOp& op, Box input, int64_t input_rank) {
  const auto insert = [&](int64_t dim) {
    input.insert(input.begin() + (dim < 0 ? dim + input_rank + 1 : dim), Range{0, 1});
  };
  const auto erase = [&](int64_t dim) { input.erase(input.begin() + (dim < 0 ? dim + input_rank : dim)); };
  if (const auto* stack = std::get_if<Stack>(&op)) {
    insert(stack->dim);
  } else if (const auto* unsqueeze = std::get_if<Unsqueeze>(&op)) {
    insert(unsqueeze->dim);
  } else if (const auto* unstack = std::get_if<Unstack>(&op)) {
    erase(unstack->dim);
  } else if (const auto* squeeze = std::get_if<Squeeze>(&op)) {
    erase(squeeze->dim);
  } else if (const auto* transpose = std::get_if<Transpose>(&op)) {
    const auto at = [&](int64_t dim) { return static_cast<size_t>(dim < 0 ? dim + input_rank : dim); };
    std::swap(input[at(transpose->dim0)], input[at(transpose->dim1)]);
  }
  return input;
}

}  // namespace lehr::state

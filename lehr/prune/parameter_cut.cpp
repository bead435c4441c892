#include "lehr/prune/parameter_cut.h"

#include <algorithm>

namespace lehr::prune {

namespace {
at::Tensor pick(int64_t dim, const std::vector<int64_t>& indices, const Box& box, const ReadBox& read) {
  const Range& wanted = box[static_cast<size_t>(dim)];
  const std::vector<int64_t> here(indices.begin() + wanted.begin, indices.begin() + wanted.end);
  Range covering{INT64_MAX, 0};
  for (const int64_t index : here) {
    if (index != Pick::kZeros) {
      covering = {std::min(covering.begin, index), std::max(covering.end, index + 1)};
    }
  }
  if (covering.size() <= 0) {
    covering = {0, 1};  // only zeros: read one element for the dtype
  }
  Box parent = box;
  parent[static_cast<size_t>(dim)] = covering;
  std::vector<int64_t> from;
  std::vector<int64_t> zeros;
  for (size_t i = 0; i < here.size(); ++i) {
    from.push_back(here[i] == Pick::kZeros ? 0 : here[i] - covering.begin);
    if (here[i] == Pick::kZeros) {
      zeros.push_back(static_cast<int64_t>(i));
    }
  }
  at::Tensor result = read(parent).index_select(dim, at::tensor(from));
  return zeros.empty() ? result : result.index_fill_(dim, at::tensor(zeros), 0);
}

at::Tensor make(const Pick& how, const Box& box, at::ScalarType /*type*/, const ReadBox& read) {
  return pick(how.dim, how.indices, box, read);
}

at::Tensor make(const PickOfExperts& how, const Box& box, at::ScalarType /*type*/, const ReadBox& read) {
  std::vector<at::Tensor> experts;
  for (int64_t i = box[0].begin; i < box[0].end; ++i) {
    const auto place = static_cast<size_t>(i);
    Box one = box;
    one[0] = {how.experts[place], how.experts[place] + 1};
    experts.push_back(how.channels.empty() ? read(one) : pick(how.dim, how.channels[place], one, read));
  }
  return at::cat(experts, 0);
}

at::Tensor make(const Average& how, const Box& box, at::ScalarType type, const ReadBox& read) {
  const Range blocks{box[0].begin / how.block, (box[0].end + how.block - 1) / how.block};
  Box parent = box;
  parent[0] = {blocks.begin * how.block * how.count, blocks.end * how.block * how.count};
  const at::Tensor heads = read(parent).to(at::kDouble).unflatten(0, {blocks.size(), how.count, how.block});
  const int64_t skipped = box[0].begin - blocks.begin * how.block;
  return heads.mean(1).flatten(0, 1).narrow(0, skipped, box[0].size()).to(type);
}
}  // namespace

std::vector<int64_t> shape_after(const ParameterCut& cut, std::vector<int64_t> parent) {
  if (const auto* one = std::get_if<Pick>(&cut.how)) {
    parent[static_cast<size_t>(one->dim)] = static_cast<int64_t>(one->indices.size());
  } else if (const auto* experts = std::get_if<PickOfExperts>(&cut.how)) {
    parent[0] = static_cast<int64_t>(experts->experts.size());
    if (!experts->channels.empty()) {
      parent[static_cast<size_t>(experts->dim)] = static_cast<int64_t>(experts->channels.front().size());
    }
  } else {
    parent[0] /= std::get<Average>(cut.how).count;
  }
  return parent;
}

at::Tensor apply(const ParameterCut& cut, const Box& box, at::ScalarType type, const ReadBox& read) {
  const std::vector<int64_t> shape = shape_of(box);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return at::empty(shape, type);
  }
  const at::Tensor made = std::visit([&](const auto& how) { return make(how, box, type, read); }, cut.how);
  return cut.factor == 1 ? made : made.to(at::kDouble).mul(cut.factor).to(type);
}

std::vector<int64_t> rows_of_blocks(const std::vector<int64_t>& blocks, int64_t size) {
  std::vector<int64_t> rows;
  for (const int64_t block : blocks) {
    for (int64_t i = 0; i < size; ++i) {
      rows.push_back(block == Pick::kZeros ? Pick::kZeros : block * size + i);
    }
  }
  return rows;
}

}  // namespace lehr::prune

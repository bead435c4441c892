#include "lehr/shard/vocabulary_part.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <limits>

#include "lehr/base/error.h"
#include "lehr/ops/autograd.h"

namespace lehr::shard {

int64_t VocabularyPart::count() const {
  int64_t sum = 0;
  for (const Range& range : rows) {
    sum += range.size();
  }
  return sum;
}

at::Tensor VocabularyPart::ids(at::Device device) const {
  std::vector<at::Tensor> ranges;
  for (const Range& range : rows) {
    ranges.push_back(at::arange(range.begin, range.end, at::TensorOptions().dtype(at::kLong).device(device)));
  }
  return at::cat(ranges);
}

at::Tensor VocabularyPart::own_row_of(const at::Tensor& labels) const {
  at::Tensor own = at::full_like(labels, -1);
  int64_t before = 0;
  for (const Range& range : rows) {
    const at::Tensor mine = labels.ge(range.begin).logical_and(labels.lt(range.end));
    own = at::where(mine, labels - range.begin + before, own);
    before += range.size();
  }
  return own;
}

void check_head(
    const char* name,
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    const VocabularyPart& part) {
  const int64_t own = part.count();
  require(
      hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) && weight.size(0) == own &&
          labels.dim() == 1 && labels.size(0) == hidden.size(0),
      "{}: expected hidden (N, H), weight ({}, H) and labels (N), found {}, {} and {}",
      name,
      own,
      ops::shape_of(hidden),
      ops::shape_of(weight),
      ops::shape_of(labels));
}

at::Tensor logits_of_labels(const at::Tensor& logits, const at::Tensor& own_rows) {
  const at::Tensor label = logits.gather(1, own_rows.clamp_min(0).unsqueeze(1)).squeeze(1);
  return label.masked_fill(own_rows.lt(0), 0);
}

void subtract_one_hot_(const at::Tensor& probabilities, const at::Tensor& own_rows) {
  const at::Tensor minus_one = own_rows.ge(0).to(probabilities.scalar_type()).neg_();
  probabilities.scatter_add_(1, own_rows.clamp_min(0).unsqueeze(1), minus_one.unsqueeze(1));
}

at::Tensor masked_by_labels(const at::Tensor& numbers, const at::Tensor& labels, int64_t vocabulary) {
  if (!labels.defined()) {
    return numbers;
  }
  return numbers.masked_fill(labels.eq(-1), 0)
      .masked_fill(labels.ge(vocabulary), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace lehr::shard

#include "lehr/shard/vocabulary_part.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <limits>

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

at::Tensor masked_by_labels(const at::Tensor& numbers, const at::Tensor& labels, int64_t vocabulary) {
  if (!labels.defined()) {
    return numbers;
  }
  return numbers.masked_fill(labels.eq(-1), 0)
      .masked_fill(labels.ge(vocabulary), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace lehr::shard

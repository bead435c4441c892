#include "lehr/ops/label_rows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/ops/cuda.h"

namespace lehr::ops {

void check_labels(const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index) {
  if (labels.is_meta()) {
    return;
  }
  const at::Tensor bad = labels.ne(ignore_index).logical_and(labels.lt(0).logical_or(labels.ge(vocabulary))).nonzero();
  if (bad.numel() > 0) {
    const auto at = bad[0][0].item<int64_t>();
    fail(
        "labels[{}]: expected 0 to {} or {} (ignored), found {}",
        at,
        vocabulary - 1,
        ignore_index,
        labels[at].item<int64_t>());
  }
}

LabelRows rows_that_count(const at::Tensor& hidden, const at::Tensor& labels, int64_t ignore_index) {
  if (labels.is_meta()) {
    return {hidden, labels, {}};  // values are unknown on meta: the maximum
  }
  const at::Tensor index = labels.ne(ignore_index).nonzero().squeeze(1);
  if (index.size(0) == labels.size(0)) {
    return {hidden, labels, {}};
  }
  return {hidden.index_select(0, index), labels.index_select(0, index), index};
}

LabelRows all_rows(const at::Tensor& hidden, const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index) {
  const at::Tensor in_range = labels.masked_fill(labels.lt(0), vocabulary).clamp_max(vocabulary);
  return {hidden, in_range.masked_fill(labels.eq(ignore_index), -1), {}};
}

LabelRows loss_rows(const at::Tensor& hidden, const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index) {
  return cuda::on_gpu(labels) ? all_rows(hidden, labels, vocabulary, ignore_index)
                              : rows_that_count(hidden, labels, ignore_index);
}

at::Tensor select_rows(const at::Tensor& rows, const at::Tensor& index) {
  return index.defined() ? rows.index_select(0, index) : rows;
}

at::Tensor spread(const at::Tensor& rows, const at::Tensor& index, int64_t count) {
  if (!index.defined()) {
    return rows;
  }
  auto sizes = rows.sizes().vec();
  sizes[0] = count;
  return at::zeros(sizes, rows.options()).index_copy_(0, index, rows);
}

int64_t chunk_rows(int64_t rows, int64_t vocabulary, int64_t element_bytes, bool on_gpu, int64_t most_bytes) {
  constexpr int64_t kCachedBytes = 16 << 20;
  constexpr int64_t kEfficientRows = 512;
  constexpr int64_t kPanelRows = 12;  // of a matmul with AVX-512; other panels are divisors of it
  const int64_t row_bytes = std::max<int64_t>(1, vocabulary * element_bytes);
  const int64_t fit = on_gpu ? kGpuLogitsBytes / row_bytes
                             : std::min(most_bytes / row_bytes, std::max(kEfficientRows, kCachedBytes / row_bytes));
  const int64_t at_most = std::max<int64_t>(1, fit);
  const int64_t chunks = std::max<int64_t>(1, (rows + at_most - 1) / at_most);
  const int64_t equal = (rows + chunks - 1) / chunks;
  const int64_t panels = (equal + kPanelRows - 1) / kPanelRows * kPanelRows;
  return !on_gpu && chunks > 1 && at_most < kEfficientRows && panels <= at_most ? panels : equal;
}

}  // namespace lehr::ops

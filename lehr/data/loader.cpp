// Preparation of batches from sequences.
#include "lehr/data/loader.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::data {
namespace {

BatchPlan checked(const BatchPlan& plan) {
  require(
      plan.first_row >= 0 && plan.num_rows > 0 && plan.first_row + plan.num_rows <= plan.global_batch_size &&
          plan.start >= 0,
      "batch plan: sequences [{}, {}) of a global batch of {} from sample {} on are inconsistent",
      plan.first_row,
      plan.first_row + plan.num_rows,
      plan.global_batch_size,
      plan.start);
  return plan;
}

}  // namespace

std::optional<int64_t> BatchPlan::rows_of(std::optional<int64_t> dataset_size) const {
  return dataset_size && max_rows ? std::min(*dataset_size, *max_rows) : dataset_size ? dataset_size : max_rows;
}

std::optional<int64_t> num_steps(std::optional<int64_t> dataset_size, int64_t global_batch_size, bool drop_last) {
  if (!dataset_size) {
    return std::nullopt;
  }
  return (*dataset_size + (drop_last ? 0 : global_batch_size - 1)) / global_batch_size;
}

Batch make_batch(const RowDataset& dataset, const BatchPlan& plan, int64_t step) {
  const int64_t length = dataset.seq_len();
  const auto empty = [&] { return at::empty({plan.num_rows, length}, at::kLong); };
  Batch batch{
      .step = step,
      .input_ids = empty(),
      .labels = empty(),
      .position_ids = empty(),
      .document_ids = empty(),
      .has_packing = false,
      .num_valid_tokens = 0};
  const RowSpan all{
      batch.input_ids.data_ptr<int64_t>(),
      batch.labels.data_ptr<int64_t>(),
      batch.position_ids.data_ptr<int64_t>(),
      batch.document_ids.data_ptr<int64_t>()};
  const auto size = plan.rows_of(dataset.size());
  for (int64_t i = 0; i < plan.num_rows; ++i) {
    const int64_t at = i * length;
    const RowSpan row{all.input_ids + at, all.labels + at, all.position_ids + at, all.document_ids + at};
    const int64_t index = plan.first_sample(step) + plan.first_row + i;
    // Past the end of finite data (drop_last = false).
    if (size && index >= *size) {
      fill_padding(length, 0, row);
    } else {
      dataset.fill(index, row);
    }
  }
  const int64_t count = plan.num_rows * length;
  batch.num_valid_tokens = count - std::count(all.labels, all.labels + count, kNoLabel);
  // Padding counts as packing, too: what it attends to must not depend on the other sequences of its batch.
  batch.has_packing = std::any_of(all.document_ids, all.document_ids + count, [](int64_t id) { return id != 0; });
  return batch;
}

std::function<std::optional<int64_t>()> steps_of(std::optional<int64_t> dataset_size, const BatchPlan& plan) {
  checked(plan);
  const auto rows = plan.rows_of(dataset_size);
  const auto steps = [&](std::optional<int64_t> left) {
    return num_steps(left, plan.global_batch_size, plan.drop_last);
  };
  require(
      !rows || steps(rows) > 0,
      "data: one pass has {} sequences, fewer than one global batch of {}. Set data.repeat = true, or reduce "
      "training.global_batch_size",
      dataset_size.value_or(0),
      plan.global_batch_size);
  const auto end = rows ? steps(std::max<int64_t>(*rows - plan.start, 0)) : std::nullopt;
  return [step = int64_t{0}, end]() mutable { return end && step >= *end ? std::nullopt : std::optional(step++); };
}

BatchLoader::BatchLoader(std::shared_ptr<const RowDataset> dataset, BatchPlan plan, PrefetchOptions options)
    : pipeline_(options.num_workers, options.depth, steps_of(dataset->size(), plan), [dataset, plan](int64_t&& step) {
        return make_batch(*dataset, plan, step);
      }) {}

}  // namespace lehr::data

// Batches of rows as tensors, made ahead of time by threads, in an order that no thread can change.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lehr/base/torch.h"
#include "lehr/data/dataset.h"
#include "lehr/data/ordered_pipeline.h"

namespace lehr::data {

/// Which rows of each global step a loader gives. Row r of step n is sample n * global_batch_size + r.
struct BatchPlan {
  int64_t global_batch_size = 0;
  int64_t first_row = 0;  ///< The local rows are [first_row, first_row + num_rows) of every global batch.
  int64_t num_rows = 0;
  int64_t start_step = 0;  ///< Counted from 0; to resume, the number of steps that are done.
  /// Finite data that does not fill the last global batch: true drops the rest; false fills the batch with rows of
  /// padding (no labels), so that every row is seen.
  bool drop_last = true;
  /// Rows of the data that are given at most, whoever gets them: it ends there as at its own end.
  std::optional<int64_t> max_rows = {};

  /// The rows that there are, of a data set of that size (nothing: endless).
  std::optional<int64_t> rows_of(std::optional<int64_t> dataset_size) const;
};

/// The plan of one of `num_ranks` data-parallel ranks. The ranks share a global batch evenly, in order; a batch that
/// they cannot share is a usage error.
BatchPlan batch_plan_of_rank(int64_t global_batch_size, int64_t rank, int64_t num_ranks, int64_t start_step = 0);

/// The number of steps that `dataset` lasts; nothing when it never ends.
std::optional<int64_t> num_steps(std::optional<int64_t> dataset_size, int64_t global_batch_size, bool drop_last);

/// The local rows of one global step. All tensors are int64 on the CPU, (B, T); see RowSpan for their meaning.
struct Batch {
  int64_t step = 0;
  at::Tensor input_ids;
  at::Tensor labels;
  at::Tensor position_ids;
  at::Tensor document_ids;
  bool has_packing = false;      ///< Some row holds more than one document, so attention needs document_ids.
  int64_t num_valid_tokens = 0;  ///< Labels that are not kNoLabel, in the local rows.
};

/// How batches are made ahead of time.
struct PrefetchOptions {
  int64_t num_workers = 1;  ///< Threads; 0: batches are made when they are asked for.
  int64_t depth = 4;        ///< Batches made ahead at most.
};

/// Gives the batches of a plan, step by step. May be destroyed at any time.
class BatchLoader {
 public:
  BatchLoader(std::shared_ptr<const RowDataset> dataset, BatchPlan plan, PrefetchOptions options = {});

  /// The next step's batch; nothing once finite data is used up. What goes wrong in a thread is thrown here, at the
  /// step that it belongs to.
  std::optional<Batch> next() { return pipeline_.next(); }

 private:
  OrderedPipeline<int64_t, Batch> pipeline_;
};

/// One batch, made now. What BatchLoader calls; useful for looking at data.
Batch make_batch(const RowDataset& dataset, const BatchPlan& plan, int64_t step);

/// A function that gives the plan's steps, one a call, and nothing after the last. Throws for a plan that makes no
/// sense, and for data that does not fill a single step.
std::function<std::optional<int64_t>()> steps_of(std::optional<int64_t> dataset_size, const BatchPlan& plan);

}  // namespace lehr::data

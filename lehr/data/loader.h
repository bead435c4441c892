// Batches of sequences as tensors, prepared ahead by threads, in an order that does not depend on the threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lehr/base/torch.h"
#include "lehr/data/dataset.h"
#include "lehr/data/ordered_pipeline.h"

namespace lehr::data {

/// The sequences of each batch that a loader returns. Sequence r of batch n is sample start + n * global_batch_size +
/// r.
struct BatchPlan {
  int64_t global_batch_size = 0;
  int64_t first_row = 0;  ///< The local sequences are [first_row, first_row + num_rows) of every global batch.
  int64_t num_rows = 0;
  int64_t start = 0;  ///< Samples before the first batch: on resume, those that were read.
  /// For finite data that does not fill the last global batch: true drops the remainder; false fills the batch with
  /// sequences of padding (no labels), so that all data is seen.
  bool drop_last = true;
  /// Maximum number of sequences over all ranks: the data ends there.
  std::optional<int64_t> max_rows = {};

  /// Returns the number of sequences of a dataset of that size (nothing: endless) under this plan.
  std::optional<int64_t> rows_of(std::optional<int64_t> dataset_size) const;
  /// Returns the sample of the first sequence of global batch `batch`.
  int64_t first_sample(int64_t batch) const { return start + batch * global_batch_size; }
};

/// Returns the number of steps of `dataset`; nothing if it never ends.
std::optional<int64_t> num_steps(std::optional<int64_t> dataset_size, int64_t global_batch_size, bool drop_last);

/// The local sequences of one global batch. All tensors are int64 on the CPU, (B, T); see RowSpan for their meaning.
struct Batch {
  int64_t step = 0;  ///< Counted from 0 at the start of the plan.
  at::Tensor input_ids;
  at::Tensor labels;
  at::Tensor position_ids;
  at::Tensor document_ids;
  bool has_packing = false;      ///< Some sequence has several documents or padding, so attention needs document_ids.
  int64_t num_valid_tokens = 0;  ///< Labels other than kNoLabel, in the local sequences.
};

/// Options for preparing batches ahead.
struct PrefetchOptions {
  int64_t num_workers = 1;  ///< Threads; 0: batches are prepared on request.
  int64_t depth = 4;        ///< Maximum number of batches prepared ahead.
};

/// Loads the batches of a plan, step by step. May be destroyed at any time.
class BatchLoader {
 public:
  BatchLoader(std::shared_ptr<const RowDataset> dataset, BatchPlan plan, PrefetchOptions options = {});

  /// Returns the next step's batch; nothing at the end of finite data. Rethrows an exception of a worker thread at the
  /// step where it occurred.
  std::optional<Batch> next() { return pipeline_.next(); }

 private:
  OrderedPipeline<int64_t, Batch> pipeline_;
};

/// Prepares one batch synchronously. BatchLoader calls it; also useful for inspection of data.
Batch make_batch(const RowDataset& dataset, const BatchPlan& plan, int64_t step);

/// Returns a function that returns the plan's steps, one per call, and nothing after the last one. Throws a usage error
/// for an inconsistent plan, and for data that does not fill a single step.
std::function<std::optional<int64_t>()> steps_of(std::optional<int64_t> dataset_size, const BatchPlan& plan);

}  // namespace lehr::data

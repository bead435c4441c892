// The source of a run's batches: datasets behind a common interface.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// Yields the batches of consecutive steps, restricted to the requested sequences of each.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// The sequences of the next step, on the CPU; nullopt at the end of finite data, which all ranks reach at the same
  /// step.
  virtual std::optional<Batch> next() = 0;
};

/// A run's data, opened and checked.
struct RunData {
  /// Number of sequences in one pass over the training data; nullopt if it repeats forever.
  std::optional<int64_t> num_train_rows;
  /// Identifies the sequences and their order.
  uint64_t fingerprint = 0;
  /// Batches from the sequence `start` (0-based) of the order on; finite or endless according to data.repeat. The order
  /// depends on the seed only, not on the size of batches or on how ranks share them.
  std::function<std::unique_ptr<BatchStream>(const RowShare& rows, int64_t start)> train;
  /// All training data once, or its first `max_rows` sequences, including a last batch that is not full. Requires
  /// data.repeat = false.
  std::function<std::unique_ptr<BatchStream>(const RowShare& rows, std::optional<int64_t> max_rows)> train_once;
  /// Number of held-out sequences; 0 if it is unknown, or if there are none.
  int64_t num_validation_rows = 0;
  /// All held-out data once, or its first `max_rows` sequences, in order; an empty function without held-out data.
  std::function<std::unique_ptr<BatchStream>(const RowShare& rows, std::optional<int64_t> max_rows)> validation;
};

/// The ids that a model has.
struct ModelIds {
  int64_t vocab_size = 0;
  std::optional<int64_t> pad_token_id{};

  static ModelIds of(const descriptor::ModelArgs& args);
};

/// Opens the datasets of [data]. Throws a usage error for missing files, data of another kind than the task's, and ids
/// outside the model's vocabulary. `inform` receives messages for the log.
RunData open_run_data(
    const TrainConfig& config,
    const data::Tokenizer& tokenizer,
    const ModelIds& model,
    const std::function<void(const std::string&)>& inform);

}  // namespace lehr::train

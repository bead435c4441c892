// Where a run's batches come from: datasets behind one small interface.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lehr/data/tokenizer.h"
#include "lehr/train/config.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// Gives the batches of consecutive steps, of each the rows that were asked for.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// The next step's rows, on the CPU; nothing once finite data is used up, which all ranks see at the same step.
  virtual std::optional<Batch> next() = 0;
};

/// A run's data, opened and checked.
struct RunData {
  /// Steps of `rows` rows that the training data lasts; nothing when it starts over for ever.
  std::function<std::optional<int64_t>(int64_t rows)> num_steps;
  /// A number for "the same rows in the same order".
  uint64_t fingerprint = 0;
  /// Batches from step `start_step` (0-based) on, endless or not as data.repeat says. Which row stands where depends on
  /// the seed and `rows.global` alone, not on how ranks share it.
  std::function<std::unique_ptr<BatchStream>(const RowShare& rows, int64_t start_step)> train;
  /// All training data once, or its first `max_rows` rows, without dropping a last batch that is not full. Needs
  /// data.repeat = false.
  std::function<std::unique_ptr<BatchStream>(const RowShare& rows, std::optional<int64_t> max_rows)> train_once;
  /// All held-out data once, or its first `max_rows` rows, in order; an empty function without held-out data.
  std::function<std::unique_ptr<BatchStream>(const RowShare& rows, std::optional<int64_t> max_rows)> validation;
};

/// Opens what [data] names. Throws usage errors: missing files, data of another kind than the task's, ids that do not
/// fit `vocab_size`. `inform` gets sentences worth telling.
RunData open_run_data(
    const TrainConfig& config,
    const data::Tokenizer& tokenizer,
    int64_t vocab_size,
    const std::function<void(const std::string&)>& inform);

}  // namespace lehr::train

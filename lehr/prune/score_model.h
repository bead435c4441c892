// The scores of a model on data.
#pragma once

#include <functional>
#include <memory>

#include "lehr/prune/model_scorer.h"
#include "lehr/train/batches.h"

namespace lehr::prune {

/// The formula of a kind, as one line for people.
const char* formula_of(Kind kind, const ScoreOptions& options);

/// The tokens of a batch that count: those that a loss is taken of; of a classifier's texts all but padding.
at::Tensor counted_tokens(const train::Batch& batch);

/// What data a model is scored on.
struct ScoreData {
  const train::TrainTask& task;
  /// Opens the batches, the same ones each time.
  std::function<std::unique_ptr<train::BatchStream>()> open;
  /// Bytes that may be kept of all tokens together; 0: half of the machine's memory.
  int64_t memory = 0;
  /// Told of every batch that is done: how many are, of how many.
  std::function<void(int64_t done, int64_t all)> progress = {};
};

/// Scores the model on all batches. The facts say `num_tokens`, `num_batches` and the `formulas`. Throws usage errors
/// as ModelScorer, if no token counts, and before the model runs if what is kept of tokens needs more memory.
Scores score_model(
    nn::Model& model,
    const descriptor::ModelDescriptor& descriptor,
    const ScoreData& data,
    const ScoreOptions& options = {});

}  // namespace lehr::prune

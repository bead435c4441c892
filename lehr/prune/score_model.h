// Scoring of a model on data.
#pragma once

#include <functional>
#include <memory>

#include "lehr/prune/model_scorer.h"
#include "lehr/train/batches.h"

namespace lehr::prune {

/// Returns the formula of a kind as one line of text.
const char* formula_of(Kind kind, const ScoreOptions& options);

/// Returns a mask of the tokens that count: those with a loss; for classification all except padding.
at::Tensor counted_tokens(const train::Batch& batch);

/// The data that a model is scored on.
struct ScoreData {
  const train::TrainTask& task;
  /// Opens the batches, the same ones each time.
  std::function<std::unique_ptr<train::BatchStream>()> open;
  /// Limit of the bytes kept for all tokens together; 0: half of the machine's memory.
  int64_t memory = 0;
  /// Called after every batch with the number of batches done and their total.
  std::function<void(int64_t done, int64_t all)> progress = {};
};

/// Scores the model on all batches. The facts hold `num_tokens`, `num_batches` and the `formulas`. Throws usage errors
/// like ModelScorer, if no token counts, and before the model runs if the bytes kept for tokens exceed the limit.
Scores score_model(
    nn::Model& model,
    const descriptor::ModelDescriptor& descriptor,
    const ScoreData& data,
    const ScoreOptions& options = {});

}  // namespace lehr::prune

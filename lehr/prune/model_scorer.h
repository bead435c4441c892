// Hooks on the modules of a model that score its parts during forward.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lehr/descriptor/model_descriptor.h"
#include "lehr/prune/scores.h"

namespace lehr::prune {

/// The score of a feed-forward block's channels; see score_channels.h.
enum class FfnMethod { iterative, independent, l2 };
/// The score of an MoE layer's experts; see score_experts.h.
enum class ExpertMethod { mse, cosine, voting };

/// The scores to compute.
struct ScoreOptions {
  std::set<Kind> kinds = {};  ///< Empty: all kinds that the model has.
  FfnMethod ffn = FfnMethod::iterative;
  ExpertMethod experts = ExpertMethod::mse;
};

/// Observes the forward of a whole model on one device, without adapters, and scores its parts. The model's outputs are
/// unchanged: scores are computed from inputs and outputs of the modules of each sub-block, which the descriptor names.
/// A no-op sub-block has no scores.
class ModelScorer {
 public:
  /// `batches` is the number of forwards to come, which IterativeChannelContribution must know. The model must outlive
  /// the scorer; the hooks stay on the model but do nothing afterwards. Throws a usage error for a kind that no layer
  /// of the model has, and if there is nothing to score.
  ModelScorer(
      nn::Model& model,
      const descriptor::ModelDescriptor& descriptor,
      int64_t batches,
      const ScoreOptions& options = {});
  ~ModelScorer();
  ModelScorer(const ModelScorer&) = delete;
  ModelScorer& operator=(const ModelScorer&) = delete;

  /// Runs a forward without gradients, in eval mode. `counted` (B, T) bool selects the tokens to count; at least one.
  void forward(const nn::ModelInputs& inputs, const at::Tensor& counted);

  /// Returns the bytes kept per counted token, summed over layers: those of RankedChoiceVoting; 0 without it.
  int64_t bytes_per_token() const;

  /// Returns the scores by layer and kind, float64 on the CPU. Throws usage errors before the last batch, and for
  /// activations that are not finite.
  std::map<std::pair<int64_t, Kind>, at::Tensor> scores() const;

 private:
  class Parts;
  nn::Model& model_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lehr::prune

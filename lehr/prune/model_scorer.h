// Hooks on a model's modules that score its parts while it runs.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lehr/descriptor/model_descriptor.h"
#include "lehr/prune/scores.h"

namespace lehr::prune {

/// How the channels of a feed-forward block are scored; see score_channels.h.
enum class FfnMethod { iterative, independent, l2 };
/// How the experts of a mixture are scored; see score_experts.h.
enum class ExpertMethod { mse, cosine, voting };

struct ScoreOptions {
  std::set<Kind> kinds = {};  ///< None: all that the model has.
  FfnMethod ffn = FfnMethod::iterative;
  ExpertMethod experts = ExpertMethod::mse;
};

/// Looks on while a whole model on one device, without adapters, runs forward, and scores its parts. The model computes
/// as it would without: scores are read from modules' inputs and outputs, in the places that Hugging Face's names have
/// (self_attn.o_proj, mlp.down_proj, the norms before them). A no-op has no scores.
class ModelScorer {
 public:
  /// `batches` is the number of forwards to come, which IterativeChannelContribution must know. The model must be there
  /// as long as the scorer, and keeps hooks that do nothing afterwards. Throws a usage error for a kind that no layer
  /// of the model has, and if there is nothing to score.
  ModelScorer(
      nn::Model& model,
      const descriptor::ModelDescriptor& descriptor,
      int64_t batches,
      const ScoreOptions& options = {});
  ~ModelScorer();
  ModelScorer(const ModelScorer&) = delete;
  ModelScorer& operator=(const ModelScorer&) = delete;

  /// A forward without gradients, in eval mode. `counted` (B, T) bool: the tokens that count; at least one.
  void forward(const nn::ModelInputs& inputs, const at::Tensor& counted);

  /// What is kept in memory of each token that counts, of all layers together: RankedChoiceVoting's; 0 without.
  int64_t bytes_a_token() const;

  /// By layer and kind, float64 on the CPU. Throws usage errors before the last batch, and for activations that are not
  /// finite.
  std::map<std::pair<int64_t, Kind>, at::Tensor> scores() const;

 private:
  class Parts;
  nn::Model& model_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lehr::prune

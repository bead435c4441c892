// Knowledge distillation: a teacher's results on a batch, and a model's comparison with them.
#pragma once

#include <optional>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/linear_kl/linear_kl.h"

namespace lehr::nn {

/// A teacher's results on the tokens of a batch; the first three on the last stage only.
struct DistillationTargets {
  at::Tensor hidden_states;            ///< (B, T, the teacher's hidden size), after its final norm.
  at::Tensor head_weight;              ///< (V, the teacher's hidden size).
  std::optional<double> softcap = {};  ///< Of the teacher's logits.
  /// (B, T, H) of each layer of the whole model, undefined for layers of other stages. Empty: layer outputs are not
  /// compared.
  std::vector<at::Tensor> layer_outputs;
  at::Tensor earlier_distance;  ///< (B, T), with its gradient: Distilled::cosine_distance of earlier stages.
  ops::LinearKlOptions loss;    ///< The loss of the head, Distilled::loss; the model's head sets its softcap.
};

/// A model's comparison with DistillationTargets, (B, T) each, float32 or float64; 0 where there is no label.
struct Distilled {
  at::Tensor loss;             ///< ops::LinearKl::loss.
  at::Tensor kl;               ///< KL(teacher || model), without gradients.
  at::Tensor agrees;           ///< 1 where the most likely token is the teacher's.
  at::Tensor cosine_distance;  ///< The mean over layers of 1 - cos(model's, teacher's hidden states). On a stage
                               ///< before the last: the layers' part so far, even where there is no label.
};

/// The mean distance of a model's hidden states from a teacher's, over the layers.
class LayerDistances {
 public:
  /// `targets` may be null, or without layer_outputs; then there is nothing to compare.
  explicit LayerDistances(const DistillationTargets* targets);
  /// Adds the hidden states (B, T, H) after the layer `index` of the whole model.
  void add(int64_t index, const at::Tensor& hidden_states);
  /// (B, T); undefined if there is nothing to compare.
  at::Tensor mean() const;

 private:
  const DistillationTargets* targets_;
  at::Tensor sum_;
};

}  // namespace lehr::nn

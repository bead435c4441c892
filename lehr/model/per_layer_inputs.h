// Inputs of single layers besides the hidden states (per-layer embeddings of Gemma 3n and of the small Gemma 4 models).
#pragma once

#include "lehr/nn/embedding.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/rms_norm.h"

namespace lehr::model {

/// Sizes of PerLayerInputs.
struct PerLayerInputsParameters {
  nn::SplitVocabulary vocabulary;
  int64_t hidden_size;
  int64_t num_hidden_layers;            ///< L
  int64_t hidden_size_per_layer_input;  ///< P, the width of a layer's input.
  double rms_norm_eps;
  nn::Init init = nn::Init::normal(0.02);
};

/// Computes what each layer reads of a token, besides the hidden states: (norm(W e / sqrt(H)) + sqrt(P) E[token]) /
/// sqrt(2), with the token's embedding e in the model, and a table E and a projection W of the layer.
class PerLayerInputsImpl : public nn::Module {
 public:
  explicit PerLayerInputsImpl(const PerLayerInputsParameters& params);

  /// Maps ids (B, T) and their embeddings (B, T, H) to the inputs of all layers, (B, T, L, P).
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& embeddings);

  nn::SplitTokenEmbeddings embed_tokens_per_layer{nullptr};  // (V, L P)
  nn::Linear per_layer_model_projection{nullptr};            // (L P, H)
  nn::RMSNorm per_layer_projection_norm{nullptr};            // (P)

 private:
  int64_t hidden_size_;
  int64_t layers_;
  int64_t width_;
};
LEHR_MODULE(PerLayerInputs);

}  // namespace lehr::model

#include "lehr/model/per_layer_inputs.h"

#include <cmath>

#include "lehr/model/scaled_embeddings.h"

namespace lehr::model {

PerLayerInputsImpl::PerLayerInputsImpl(const PerLayerInputsParameters& params)
    : hidden_size_(params.hidden_size), layers_(params.num_hidden_layers), width_(params.hidden_size_per_layer_input) {
  embed_tokens_per_layer = register_module(
      "embed_tokens_per_layer", nn::SplitTokenEmbeddings(params.vocabulary, layers_ * width_, params.init));
  per_layer_model_projection =
      register_module("per_layer_model_projection", nn::Linear(hidden_size_, layers_ * width_, params.init));
  per_layer_projection_norm = register_module("per_layer_projection_norm", nn::RMSNorm(width_, params.rms_norm_eps));
}

at::Tensor PerLayerInputsImpl::forward(const at::Tensor& input_ids, const at::Tensor& embeddings) {
  const auto by_layer = [this](const at::Tensor& all) { return all.view({all.size(0), all.size(1), layers_, width_}); };
  const at::Tensor own =
      scaled_embeddings(embed_tokens_per_layer(input_ids), std::sqrt(static_cast<double>(width_)));  // (B, T, L P)
  const at::Tensor projected =
      per_layer_model_projection(embeddings) * std::pow(static_cast<double>(hidden_size_), -0.5);  // (B, T, L P)
  return (per_layer_projection_norm(by_layer(projected)) + by_layer(own)) * std::sqrt(0.5);
}

}  // namespace lehr::model

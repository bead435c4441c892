// Modules for multi-token prediction (MTP; DeepSeek-V3 technical report, https://arxiv.org/abs/2412.19437,
// section 2.2): one decoder layer each, after the model, that predicts a token further ahead.
//
// Module k combines the hidden states of the depth before it with the embeddings of the tokens k positions later, and
// the model's head scores its hidden states by the tokens k + 1 positions later. Embeddings first, and hidden states
// after their norm, as in Megatron's MultiTokenPredictionLayer and in vLLM's readers of the published weights.
#pragma once

#include "lehr/model/decoder.h"

namespace lehr::model {

/// The modules of a model, on its last pipeline stage.
template <class LayerParameters>
struct MtpParameters {
  int64_t modules;        ///< D, their number.
  LayerParameters layer;  ///< Of the decoder layer of each.
  int64_t first_index;    ///< The index of the first module's layer: the number of the model's layers.
};

/// One module. `Layer` and `LayerParameters` are those of the model's backbone.
template <class Layer, class LayerParameters>
class MtpModuleImpl : public nn::Module {
 public:
  MtpModuleImpl(const LayerParameters& params, int64_t layer_index, nn::NormWeight norm_weight)
      : layer_index_(layer_index) {
    const auto norm_module = [&] { return nn::RMSNorm(params.hidden_size, params.rms_norm_eps, norm_weight); };
    enorm = register_module("enorm", norm_module());
    hnorm = register_module("hnorm", norm_module());
    eh_proj = register_module(
        "eh_proj", nn::Linear(2 * params.hidden_size, params.hidden_size, nn::Init::normal(params.initializer_range)));
    layer = register_module("layer", make_layer<Layer>(params, layer_index));
    norm = register_module("norm", norm_module());
  }

  /// Maps (2, B, T, H), embeddings and hidden states, to the hidden states of this depth, (B, T, H). They are one
  /// tensor so that activation checkpointing saves all that the module reads.
  at::Tensor forward(
      const at::Tensor& inputs,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask) {
    const at::Tensor both = at::cat({enorm(inputs.select(0, 0)), hnorm(inputs.select(0, 1))}, -1);  // (B, T, 2 H)
    return norm(layer(eh_proj(both), position_embeddings, attention_mask, /*cache=*/nullptr));
  }

  /// The index of the layer, which counts on from the model's.
  int64_t layer_index() const { return layer_index_; }

  nn::RMSNorm enorm{nullptr}, hnorm{nullptr};  // of the embeddings, and of the hidden states
  nn::Linear eh_proj{nullptr};                 // (H, 2 H)
  Layer layer{nullptr};
  nn::RMSNorm norm{nullptr};

 private:
  int64_t layer_index_;
};

/// Its holder.
template <class Layer, class LayerParameters>
class MtpModule : public nn::ModuleHolder<MtpModuleImpl<Layer, LayerParameters>> {
 public:
  using nn::ModuleHolder<MtpModuleImpl<Layer, LayerParameters>>::ModuleHolder;
  using Impl = MtpModuleImpl<Layer, LayerParameters>;
};

/// The modules of a model, called one after the other.
template <class Layer, class LayerParameters>
class MtpModulesImpl : public nn::LayerMapImpl<MtpModule<Layer, LayerParameters>> {
 public:
  MtpModulesImpl(const MtpParameters<LayerParameters>& params, nn::NormWeight norm_weight) {
    for (int64_t module = 0; module < params.modules; ++module) {
      this->insert(module, MtpModule<Layer, LayerParameters>(params.layer, params.first_index + module, norm_weight));
    }
  }

  /// Returns the hidden states of all depths, (B, T, 1 + D, H): `hidden_states` (B, T, H), the model's, first.
  /// `embeddings` (B, T, D, H) are those of the tokens 1, ..., D positions later.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const at::Tensor& embeddings,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask,
      ActivationCheckpointing checkpointing) {
    std::vector<at::Tensor> depths{hidden_states};
    for (auto& [index, module] : *this) {
      // Captured by value: with activation checkpointing, backward calls this after the frame has ended.
      auto block = [current = module, position_embeddings, mask = attention_mask](const at::Tensor& x) {
        return current(x, position_embeddings, mask);
      };
      const at::Tensor inputs = at::stack({embeddings.select(2, index), depths.back()});  // (2, B, T, H)
      depths.push_back(nn::run_layer(checkpointing, module->layer_index(), block, inputs));
    }
    return at::stack(depths, 2);
  }
};

}  // namespace lehr::model

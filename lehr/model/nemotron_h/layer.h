// One Nemotron-H decoder layer.
#pragma once

#include "lehr/model/layer_sizes.h"
#include "lehr/model/mamba2_config.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/mamba2.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/relu_squared.h"

namespace lehr::model {

/// Sizes of one Nemotron-H decoder layer. With attention_no_op, a layer with Mamba-2 or attention is empty; with
/// ffn_no_op, a layer with a feed-forward block or experts.
struct NemotronHLayerParameters : LayerSizes {
  Mamba2Config mamba;            ///< Mamba-2, and the mixer of each layer.
  std::optional<MoEConfig> moe;  ///< Of layers with experts.
};

/// Mamba-2, attention without rotary positions, a feed-forward block with squared ReLU, or experts that are such
/// blocks, with a pre-norm and a residual connection (https://arxiv.org/abs/2504.03624; experts:
/// https://arxiv.org/abs/2512.20848).
class NemotronHLayerImpl : public nn::Module {
 public:
  explicit NemotronHLayerImpl(const NemotronHLayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  // One of the first four is there, which checkpoints name "mixer", and the norm before it, which they name "norm". An
  // empty layer has none, and returns its input.
  nn::Mamba2 mamba{nullptr};
  nn::GroupedQueryAttention self_attn{nullptr};
  nn::ReluSquaredMlp mlp{nullptr};
  nn::MoELayer experts{nullptr};        // registered as "mlp"
  nn::RMSNorm attention_norm{nullptr};  // before Mamba-2 or attention
  nn::RMSNorm ffn_norm{nullptr};        // before the feed-forward block or the experts
};
LEHR_MODULE(NemotronHLayer);

}  // namespace lehr::model

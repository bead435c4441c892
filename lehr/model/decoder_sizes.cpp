#include "lehr/model/decoder_sizes.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/decoder_limits.h"

namespace lehr::model {

namespace {
using descriptor::AttentionSubblock;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;

// Products in floating point do not overflow.
double real(int64_t number) {
  return static_cast<double>(number);
}

void check_layer_sizes(const descriptor::BlockConfig& block, const std::string& where) {
  const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  if (attention != nullptr && attention->window > 0) {
    require_size(where, "attention.window_length", attention->window);
  }
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    require_size(where, "ffn.intermediate_size", ffn->intermediate_size);
  }
  if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    require_size(where, "ffn.moe.num_local_experts", moe->num_local_experts);
    require_size(where, "ffn.moe.expert_intermediate_dim", moe->expert_intermediate_dim);
  }
}

struct Totals {
  double parameters = 0, experts = 0, head_elements = 0;
};

// Parameters of latent attention.
double latent_parameters(const DecoderConfig& shape, const LatentAttentionConfig& latent) {
  const double hidden = real(shape.hidden_size), heads = real(shape.num_attention_heads);
  const double queries = heads * real(latent.qk_head_dim()), values = heads * real(latent.v_head_dim);
  const double rank = real(latent.kv_lora_rank);
  const double of_queries = latent.q_lora_rank ? real(*latent.q_lora_rank) * (hidden + queries) : hidden * queries;
  return of_queries + rank * (hidden + heads * real(latent.qk_nope_head_dim) + values) + values * hidden;
}

Totals totals_of(const DecoderConfig& shape, const std::vector<descriptor::BlockConfig>& blocks) {
  const double hidden = real(shape.hidden_size);
  const double labels = descriptor::is_classifier(shape.head) ? real(shape.num_labels) : 0;
  const double inputs = real(shape.num_hidden_layers) * real(shape.hidden_size_per_layer_input);
  Totals totals{.parameters = hidden * (2 * real(shape.vocab_size) + labels)};
  totals.parameters += inputs * (real(shape.vocab_size) + 3 * hidden);
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const auto& block = blocks[layer];
    const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
    const bool has_states = attention != nullptr && shape.has_states(static_cast<int64_t>(layer));
    if (has_states && shape.mamba2) {
      const double inner = real(shape.mamba2->mamba_num_heads) * real(shape.mamba2->mamba_head_dim);
      const double keys = real(shape.mamba2->n_groups) * real(shape.mamba2->ssm_state_size);
      totals.head_elements += 2 * (keys + inner);
      totals.parameters += hidden * (3 * inner + 2 * keys + real(shape.mamba2->mamba_num_heads));
    } else if (has_states) {
      const LinearAttentionConfig& linear = value_of(shape.linear_attention, "linear_attention");
      const double keys = real(linear.linear_num_key_heads) * real(linear.linear_key_head_dim);
      const double values = real(linear.linear_num_value_heads) * real(linear.linear_value_head_dim);
      totals.head_elements += 2 * (keys + values);
      totals.parameters += hidden * (2 * keys + 3 * values + 2 * real(linear.linear_num_value_heads));
    } else if (attention != nullptr) {
      const auto index = static_cast<int64_t>(layer);
      const double width = real(std::max(shape.query_width(index), shape.value_width(index)));
      const double heads = real(shape.num_attention_heads) * width;
      totals.head_elements += heads;
      totals.parameters += shape.latent_attention ? latent_parameters(shape, *shape.latent_attention)
                                                  : 2 * hidden * (heads + real(attention->num_key_value_heads) * width);
    }
    totals.parameters += hidden * hidden * (real(block.attention_is_linear()) + real(block.ffn_is_linear()));
    if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
      totals.parameters += 3 * hidden * real(ffn->intermediate_size);
    }
    if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
      const double latent = shape.moe ? real(shape.moe->moe_latent_size) : 0, width = latent > 0 ? latent : hidden;
      totals.experts += real(moe->num_local_experts);
      totals.parameters += real(moe->num_local_experts) * (3 * width * real(moe->expert_intermediate_dim) + hidden);
      totals.parameters += 2 * hidden * latent;
      totals.parameters += 3 * hidden * real(moe->shared_expert_intermediate_dim);
    }
  }
  return totals;
}
}  // namespace

void check_sizes(const DecoderConfig& shape, const std::string& where) {
  require_size(where, "vocab_size", shape.vocab_size);
  require_size(where, "hidden_size", shape.hidden_size);
  require_size(where, "intermediate_size", shape.intermediate_size);
  require_size(where, "num_hidden_layers", shape.num_hidden_layers, kMostLayers);
  require_size(where, "num_attention_heads", shape.num_attention_heads);
  require_size(where, "num_key_value_heads", shape.num_key_value_heads);
  require_size(where, "head_dim", shape.head_dim);
  if (shape.full_attention) {
    require_size(where, "global_head_dim", shape.full_attention->head_dim);
    if (const int64_t heads = shape.full_attention->num_key_value_heads; heads != 0) {
      require_size(where, "num_global_key_value_heads", heads);
    }
  }
  require(
      shape.num_kv_shared_layers >= 0 && shape.num_kv_shared_layers <= shape.num_hidden_layers,
      "{}num_kv_shared_layers: expected a number from 0 to num_hidden_layers ({}), found {}",
      where,
      shape.num_hidden_layers,
      shape.num_kv_shared_layers);
  if (shape.hidden_size_per_layer_input != 0) {
    require_size(where, "hidden_size_per_layer_input", shape.hidden_size_per_layer_input);
  }
  require_size(where, "max_position_embeddings", shape.max_position_embeddings);
  if (descriptor::is_classifier(shape.head)) {
    require_size(where, "num_labels", shape.num_labels, kMostLabels);
  }
  if (shape.moe) {
    shape.moe->check(where, shape.num_hidden_layers);
  }
  for (size_t layer = 0; layer < shape.block_configs.size(); ++layer) {
    check_layer_sizes(shape.block_configs[layer], fmt::format("{}block_configs[{}].", where, layer));
  }
  const Totals totals = totals_of(shape, shape.blocks());
  require(
      totals.head_elements <= real(kMostHeadElements),
      "{}head_dim, num_attention_heads, num_hidden_layers: expected a product of at most {}, found {:.4g}",
      where,
      kMostHeadElements,
      totals.head_elements);
  require(
      totals.experts <= real(kMostExperts),
      "{}num_experts, num_hidden_layers: expected at most {} experts in all layers together, found {:.0f}",
      where,
      kMostExperts,
      totals.experts);
  require(
      totals.parameters <= real(kMostParameters),
      "{}vocab_size, hidden_size, intermediate_size, num_hidden_layers: expected at most {} parameters, found about "
      "{:.2g}",
      where,
      kMostParameters,
      totals.parameters);
}

}  // namespace lehr::model

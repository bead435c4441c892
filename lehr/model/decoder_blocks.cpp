#include "lehr/model/decoder_blocks.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/decoder_limits.h"

namespace lehr::model {

using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;

descriptor::ModelOverrides block_overrides(const DecoderConfig& shape, const BlockConfig& block) {
  descriptor::ModelOverrides overrides;
  const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  if (attention != nullptr && !shape.latent_attention) {
    overrides.num_key_value_heads = attention->num_key_value_heads;
  }
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    overrides.intermediate_size = ffn->intermediate_size;
  }
  if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    overrides.num_experts = moe->num_local_experts;
    overrides.num_experts_per_tok = moe->num_experts_per_tok;
    overrides.moe_intermediate_size = moe->expert_intermediate_dim;
  }
  return overrides;
}

namespace {
// What the attention of a layer is if its keys and values are not divided into heads, so that a block config says that
// it has one; null for grouped-query attention.
const char* undivided_attention(const DecoderConfig& shape, int64_t layer) {
  return shape.latent_attention     ? "latent attention"
         : !shape.has_states(layer) ? nullptr
         : shape.linear_attention   ? "gated DeltaNet"
                                    : "Mamba-2";
}

bool has_experts(const DecoderConfig& shape, int64_t layer) {
  return shape.moe && (shape.mamba2 ? shape.mamba2->mixer(layer) == Mixer::experts : shape.moe->has_experts(layer));
}

BlockConfig plain_block(const DecoderConfig& shape, int64_t layer) {
  const bool undivided = undivided_attention(shape, layer) != nullptr;
  BlockConfig block{
      .attention = AttentionSubblock{.num_key_value_heads = undivided ? 1 : shape.key_value_heads(layer)},
      .ffn = FFNSubblock{shape.ffn_width(layer)}};
  if (has_experts(shape, layer)) {
    const MoEConfig& moe = value_of(shape.moe, "moe");
    block.ffn = MoESubblock{
        .num_local_experts = moe.num_experts,
        .num_experts_per_tok = moe.num_experts_per_tok,
        .expert_intermediate_dim = moe.moe_intermediate_size,
        .shared_expert_intermediate_dim = moe.beside_dense ? shape.ffn_width(layer) : moe.shared_expert_width()};
  }
  if (shape.mamba2 && mixes_channels(shape.mamba2->mixer(layer))) {
    block.attention = descriptor::NoOpSubblock{};
  } else if (shape.mamba2) {
    block.ffn = descriptor::NoOpSubblock{};
  }
  return block;
}

std::vector<BlockConfig> plain_blocks(const DecoderConfig& shape) {
  std::vector<BlockConfig> blocks;
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    blocks.push_back(plain_block(shape, layer));
  }
  return blocks;
}

// The shape with the sizes of its blocks. Sizes that differ between blocks are not meaningful in it.
DecoderConfig with_sizes_of(const std::vector<BlockConfig>& blocks, DecoderConfig shape) {
  shape.block_configs.clear();
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const BlockConfig& block = blocks[layer];
    const auto own = block_overrides(shape, block);
    if (undivided_attention(shape, static_cast<int64_t>(layer)) == nullptr) {
      shape.num_key_value_heads = own.num_key_value_heads.value_or(shape.num_key_value_heads);
    }
    shape.intermediate_size = own.intermediate_size.value_or(shape.intermediate_size);
    if (shape.moe) {
      shape.moe->apply(own);
    }
    const auto* moe = std::get_if<MoESubblock>(&block.ffn);
    if (moe != nullptr && shape.moe && shape.moe->shared_expert_intermediate_size > 0) {
      shape.moe->shared_expert_intermediate_size = moe->shared_expert_intermediate_dim;
    }
  }
  return shape;
}

// True if a model can have these sizes; otherwise the error is reported for the block that has them.
bool sizes_fit(const DecoderConfig& shape) {
  const bool experts_fit = !shape.moe || (shape.moe->num_experts_per_tok > 0 && shape.moe->moe_intermediate_size > 0 &&
                                          shape.moe->num_experts_per_tok <= shape.moe->num_experts);
  return experts_fit && shape.intermediate_size > 0 && shape.num_key_value_heads > 0 &&
         shape.num_attention_heads % shape.num_key_value_heads == 0;
}

void fill_from_blocks(const std::vector<BlockConfig>& blocks, DecoderConfig& shape) {
  int64_t heads = 0;
  int64_t width = 0;
  for (const BlockConfig& block : blocks) {
    const auto own = block_overrides(shape, block);
    heads = std::max(heads, own.num_key_value_heads.value_or(0));
    width = std::max(width, own.intermediate_size.value_or(0));
  }
  if (shape.num_key_value_heads == 0) {
    shape.num_key_value_heads = heads > 0 && !shape.latent_attention ? heads : shape.num_attention_heads;
  }
  if (shape.intermediate_size == 0) {
    shape.intermediate_size = width;
  }
}

bool has_shared_experts(const DecoderConfig& shape) {
  return shape.moe && shape.moe->shared_expert_width() > 0;
}

bool is_there(const Node& config, const char* key) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null();
}
}  // namespace

std::vector<BlockConfig> DecoderConfig::blocks() const {
  return block_configs.empty() ? plain_blocks(*this) : block_configs;
}

DecoderConfig DecoderConfig::of_block(const BlockConfig& block) const {
  DecoderConfig own = *this;
  own.block_configs.clear();
  if (own.moe) {
    // The block decides whether the layer has experts.
    own.moe->decoder_sparse_step = 1;
    own.moe->mlp_only_layers.clear();
    own.moe->num_experts = 0;
  }
  auto overrides = block_overrides(*this, block);
  overrides.split_vocab_size = split_vocab_size;
  overrides.split_vocab_order = split_vocab_order;
  own.apply(overrides);
  const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  if (attention != nullptr && attention->window > 0) {  // rotary positions stay as they are
    own.pattern.sliding_window = attention->window;
    own.pattern.sliding = {true};
  }
  const auto* experts = std::get_if<MoESubblock>(&block.ffn);
  if (experts != nullptr && own.moe) {
    own.moe->n_shared_experts = 0;
    own.moe->shared_expert_intermediate_size = experts->shared_expert_intermediate_dim;
  }
  return own;
}

bool DecoderConfig::has_states(int64_t layer) const {
  return (linear_attention && linear_attention->is_linear(layer)) || (mamba2 && mamba2->mixer(layer) == Mixer::mamba);
}

int64_t DecoderConfig::flops_of_states() const {
  return linear_attention ? linear_attention->flops_per_token() : mamba2 ? mamba2->flops_per_token() : 0;
}

void DecoderConfig::shift_layers(int64_t count) {
  pattern = pattern.shifted(count);
  if (linear_attention) {
    linear_attention->layers = LayerPattern{.sliding = linear_attention->layers}.shifted(count).sliding;
  }
  if (mamba2) {
    mamba2->shift(count);
  }
}

std::optional<int64_t> DecoderConfig::window(int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  const auto* attention =
      index < block_configs.size() ? std::get_if<AttentionSubblock>(&block_configs[index].attention) : nullptr;
  return attention != nullptr && attention->window > 0 ? attention->window : pattern.window(layer);
}

void DecoderConfig::set_blocks(std::vector<BlockConfig> blocks) {
  DecoderConfig plain = with_sizes_of(blocks, *this);
  if (blocks == plain_blocks(plain) && sizes_fit(plain)) {
    *this = std::move(plain);
  } else {
    block_configs = std::move(blocks);
  }
}

void read_blocks(const Node& config, DecoderConfig& shape) {
  if (!is_there(config, "block_configs") && !is_there(config, "per_layer_config")) {
    return;
  }
  // Before an entry per layer is made, and before divisions.
  require_size(config.origin() + ": ", "num_hidden_layers", shape.num_hidden_layers, kMostLayers);
  require_size(config.origin() + ": ", "num_attention_heads", shape.num_attention_heads);
  require(
      !shape.moe || shape.moe->decoder_sparse_step > 0,
      "{}: decoder_sparse_step: expected a positive number, found {}",
      config.origin(),
      shape.moe ? shape.moe->decoder_sparse_step : 0);
  auto blocks = descriptor::read_block_configs(
      config,
      {.blocks = plain_blocks(shape),
       .hidden_size = shape.hidden_size,
       .num_attention_heads = shape.num_attention_heads});
  if (!blocks) {
    return;
  }
  for (BlockConfig& block : *blocks) {
    auto* moe = std::get_if<MoESubblock>(&block.ffn);
    if (moe != nullptr && moe->shared_expert_intermediate_dim == descriptor::kPuzzletronSharedExpert &&
        !has_shared_experts(shape)) {
      moe->shared_expert_intermediate_dim = 0;
    }
  }
  fill_from_blocks(*blocks, shape);
  shape.set_blocks(std::move(*blocks));
}

void check_blocks(const DecoderConfig& shape, const std::string& where) {
  const auto& blocks = shape.block_configs;
  if (blocks.empty()) {
    return;
  }
  require(
      static_cast<int64_t>(blocks.size()) == shape.num_hidden_layers,
      "{}block_configs: expected one per layer ({}, num_hidden_layers), found {}",
      where,
      shape.num_hidden_layers,
      blocks.size());
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const std::string key = fmt::format("{}block_configs[{}].", where, layer);
    check_block_config(blocks[layer], key, shape.num_attention_heads);
    const char* undivided = undivided_attention(shape, static_cast<int64_t>(layer));
    const auto* attention = std::get_if<AttentionSubblock>(&blocks[layer].attention);
    require(
        undivided == nullptr || attention == nullptr || attention->num_key_value_heads == 1,
        "{}attention.num_key_value_heads: the layer has {}, without KV heads that could be fewer; expected 1, found {}",
        key,
        undivided == nullptr ? "" : undivided,
        attention == nullptr ? 0 : attention->num_key_value_heads);
    require(
        undivided == nullptr || attention == nullptr || attention->window == 0,
        "{}attention.window_length: the layer has {}, which has no windows; remove the key",
        key,
        undivided == nullptr ? "" : undivided);
    if (shape.mamba2) {
      const Mixer mixer = shape.mamba2->mixer(static_cast<int64_t>(layer));
      const bool has_ffn = mixes_channels(mixer), experts = mixer == Mixer::experts;
      const char* own = !has_ffn ? "attention or Mamba-2" : experts ? "experts" : "a feed-forward block";
      require(
          has_ffn ? blocks[layer].attention_is_no_op() : blocks[layer].ffn_is_no_op(),
          "{}{}: the layer has one sub-block, {} (hybrid_override_pattern); expected no_op",
          key,
          has_ffn ? "attention" : "ffn",
          own);
      require(
          experts ? !std::holds_alternative<FFNSubblock>(blocks[layer].ffn)
                  : !std::holds_alternative<MoESubblock>(blocks[layer].ffn),
          "{}ffn: the layer has {} (hybrid_override_pattern); expected {}, or no_op",
          key,
          experts ? "experts" : "no experts",
          experts ? "moe" : "intermediate_size");
    }
    if (const auto* moe = std::get_if<MoESubblock>(&blocks[layer].ffn)) {
      require(
          shape.moe.has_value(), "{}ffn.moe: this family has no experts; expected intermediate_size, or no_op", key);
      const int64_t shared = moe->shared_expert_intermediate_dim;
      require(
          has_shared_experts(shape) || shared == 0,
          "{}ffn.moe.shared_expert_intermediate_dim: this family has no shared experts; expected 0 (or {}, which "
          "puzzletron writes in any case), found {}",
          key,
          descriptor::kPuzzletronSharedExpert,
          shared);
      if (has_shared_experts(shape)) {
        require_size(key, "ffn.moe.shared_expert_intermediate_dim", shared);
      }
      value_of(shape.of_block(blocks[layer]).moe, "moe").check(key + "ffn.moe: ", shape.num_hidden_layers);
    }
  }
}

void refuse_overrides_of_blocks(const descriptor::ModelOverrides& o) {
  const std::pair<const char*, bool> given[] = {
      {"num_hidden_layers", o.num_hidden_layers.has_value()},
      {"num_key_value_heads", o.num_key_value_heads.has_value()},
      {"intermediate_size", o.intermediate_size.has_value()},
      {"num_experts", o.num_experts.has_value()},
      {"num_experts_per_tok", o.num_experts_per_tok.has_value()},
      {"moe_intermediate_size", o.moe_intermediate_size.has_value()},
      {"decoder_sparse_step", o.decoder_sparse_step.has_value()},
      {"mlp_only_layers", !o.mlp_only_layers.empty()}};
  for (const auto& [key, is_given] : given) {
    require(
        !is_given,
        "model.args.{}: block_configs in the model's config.json sets it per layer; change it there, or remove this "
        "key",
        key);
  }
}

}  // namespace lehr::model

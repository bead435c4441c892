#include "lehr/model/latent_attention_config.h"

#include <cmath>

#include "lehr/descriptor/block_account.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/rope_config.h"
#include "lehr/nn/latent_attention.h"

namespace lehr::model {

namespace {
double factor_of(const nn::RopeScaling& scaling) {
  const auto factor = [](const auto& of_type) {
    if constexpr (requires { of_type.factor; }) {
      return of_type.factor;
    }
    return 1.0;
  };
  return std::visit(factor, scaling);
}
}  // namespace

std::optional<double> LatentAttentionConfig::scale(const nn::RopeScaling& scaling) const {
  if (mscale_all_dim == 0) {
    return std::nullopt;
  }
  const double mscale = nn::yarn_mscale(factor_of(scaling), mscale_all_dim);
  return mscale * mscale / std::sqrt(static_cast<double>(qk_head_dim()));
}

nn::MultiHeadLatentAttentionParameters LatentAttentionConfig::parameters(
    const LayerSizes& sizes, std::optional<double> attention_scale) const {
  return {
      .hidden_size = sizes.hidden_size,
      .num_attention_heads = sizes.num_attention_heads,
      .q_lora_rank = q_lora_rank,
      .kv_lora_rank = kv_lora_rank,
      .qk_nope_head_dim = qk_nope_head_dim,
      .qk_rope_head_dim = qk_rope_head_dim,
      .v_head_dim = v_head_dim,
      .attention_bias = attention_bias,
      .scale = attention_scale,
      .rotary_style = rope_interleave ? nn::RotaryStyle::interleaved : nn::RotaryStyle::half,
      .init = nn::Init::normal(sizes.initializer_range)};
}

descriptor::LatentAttentionForm LatentAttentionConfig::form() const {
  return {
      .q_lora_rank = q_lora_rank.value_or(0),
      .kv_lora_rank = kv_lora_rank,
      .qk_nope_head_dim = qk_nope_head_dim,
      .qk_rope_head_dim = qk_rope_head_dim,
      .v_head_dim = v_head_dim,
      .bias = attention_bias};
}

// Absent keys are those of transformers' DeepseekV3Config, if that has a value which most models share.
LatentAttentionConfig LatentAttentionConfig::from_hf(const Node& config) {
  const Node* rope = rope_table_of(config);
  return {
      .q_lora_rank = config.find("q_lora_rank") == nullptr ? 1536 : optional_int(config, "q_lora_rank"),
      .kv_lora_rank = config.at("kv_lora_rank").as_int(),
      .qk_nope_head_dim = config.at("qk_nope_head_dim").as_int(),
      .qk_rope_head_dim = config.at("qk_rope_head_dim").as_int(),
      .v_head_dim = config.at("v_head_dim").as_int(),
      .rope_interleave = bool_or(config, "rope_interleave", true),
      .attention_bias = bool_or(config, "attention_bias", false),
      .mscale_all_dim = rope == nullptr ? 0 : double_or(*rope, "mscale_all_dim", 0)};
}

void LatentAttentionConfig::to_hf(Node& config) const {
  config.set("q_lora_rank", number_or_null(q_lora_rank));
  config.set("kv_lora_rank", Node(kv_lora_rank));
  config.set("qk_nope_head_dim", Node(qk_nope_head_dim));
  config.set("qk_rope_head_dim", Node(qk_rope_head_dim));
  config.set("v_head_dim", Node(v_head_dim));
  config.set("rope_interleave", Node(rope_interleave));
  config.set("attention_bias", Node(attention_bias));
  Node* rope = config.find("rope_scaling");
  if (mscale_all_dim != 0 && rope != nullptr && !rope->is_null()) {
    rope->set("mscale_all_dim", Node(mscale_all_dim));
  }
}

void LatentAttentionConfig::check(const std::string& where) const {
  require_size(where, "q_lora_rank", q_lora_rank.value_or(1));
  require_size(where, "kv_lora_rank", kv_lora_rank);
  require_size(where, "qk_nope_head_dim", qk_nope_head_dim);
  require_size(where, "qk_rope_head_dim", qk_rope_head_dim);
  require_size(where, "v_head_dim", v_head_dim);
}

}  // namespace lehr::model

#include "lehr/model/qwen3_next/family.h"

#include <array>

#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/rope_config.h"

namespace lehr::model {

template class DecoderImpl<Qwen3NextLayer, Qwen3NextLayerParameters>;

Qwen3NextLayerParameters hybrid_parameters(const DecoderConfig& config) {
  return {layer_sizes(config), config.rotary_dim(), value_of(config.linear_attention, "linear attention"), config.moe};
}

namespace {
struct Family {
  static constexpr const char* kModelType = "qwen3_next";
  static constexpr const char* kArchitecture = "Qwen3Next";
  static constexpr MtpNames kMtpNames = MtpNames::own_module;
  using Layer = Qwen3NextLayer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .output_gate = true, .shared_expert_gate = true};
  static constexpr nn::NormWeight kNormWeight = nn::NormWeight::zero_centered;
  static constexpr std::array kRequiredKeys{
      "head_dim",
      "num_key_value_heads",
      "num_experts",
      "num_experts_per_tok",
      "moe_intermediate_size",
      "shared_expert_intermediate_size"};
  // transformers' class reads no use_sliding_window.
  static constexpr std::array kOwnKeys{"layer_types", "partial_rotary_factor", "use_sliding_window"};

  static Qwen3NextLayerParameters layer_parameters(const DecoderConfig& config) {
    value_of(config.moe, "experts");
    return hybrid_parameters(config);
  }

  static void read(const Node& config, DecoderConfig& shape) {
    shape.linear_attention = LinearAttentionConfig::from_hf(config, shape.num_hidden_layers);
    MoEConfig moe = MoEConfig::from_hf(config);
    moe.norm_topk_prob = bool_or(config, "norm_topk_prob", true);
    moe.shared_expert_intermediate_size = config.at("shared_expert_intermediate_size").as_int();
    require_size(config.origin() + ": ", "shared_expert_intermediate_size", moe.shared_expert_intermediate_size);
    shape.moe = std::move(moe);
    shape.num_nextn_predict_layers = read_mtp_modules(kMtpNames, config);
    shape.partial_rotary_factor = read_partial_rotary_factor(config, 0.25);
  }

  static void write(const DecoderConfig& shape, Node& node) {
    value_of(shape.linear_attention, "linear attention").to_hf(node, shape.num_hidden_layers);
    node.set("shared_expert_intermediate_size", Node(value_of(shape.moe, "experts").shared_expert_intermediate_size));
    node.set("partial_rotary_factor", Node(shape.partial_rotary_factor));
    node.set(descriptor::kMtpModulesKey, Node(shape.mtp_modules()));  // published folders lack it, and have one
  }
};

DecoderConfig published() {
  return {
      .vocab_size = 151936,
      .hidden_size = 2048,
      .intermediate_size = 5120,
      .num_hidden_layers = 48,
      .num_attention_heads = 16,
      .num_key_value_heads = 2,
      .head_dim = 256,
      .max_position_embeddings = 262144,
      .rope_theta = 1e7,
      .bos_token_id = 151643,
      .eos_token_id = {151645},
      .moe =
          MoEConfig{
              .num_experts = 512,
              .num_experts_per_tok = 10,
              .moe_intermediate_size = 512,
              .shared_expert_intermediate_size = 512},
      .partial_rotary_factor = 0.25,
      .linear_attention = LinearAttentionConfig{},
      .num_nextn_predict_layers = 1};
}

DecoderConfig debug_model() {
  DecoderConfig config = published();
  set_debug_vocabulary(config);
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 32;
  config.max_position_embeddings = 4096;
  config.moe = MoEConfig{
      .num_experts = 32,
      .num_experts_per_tok = 4,
      .moe_intermediate_size = 128,
      .shared_expert_intermediate_size = 128};
  config.linear_attention = LinearAttentionConfig{
      .linear_key_head_dim = 16, .linear_value_head_dim = 16, .linear_num_key_heads = 4, .linear_num_value_heads = 8};
  return config;
}
}  // namespace

descriptor::ModelFamily qwen3_next_family() {
  return make_decoder_family<Family>("qwen3_next", {{"debugmodel", debug_model()}, {"80B-A3B", published()}});
}

LEHR_DEFINE_DECODER_FAMILY(Qwen3Next, qwen3_next)

}  // namespace lehr::model

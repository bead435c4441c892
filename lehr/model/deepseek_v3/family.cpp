#include "lehr/model/deepseek_v3/family.h"

#include <array>
#include <variant>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/deepseek_moe_config.h"
#include "lehr/model/define_decoder_family.h"

namespace lehr::model {

template class DecoderImpl<DeepseekV3Layer, DeepseekV3LayerParameters>;

namespace {
struct Family {
  static constexpr const char* kModelType = "deepseek_v3";
  static constexpr const char* kArchitecture = "DeepseekV3";
  static constexpr MtpNames kMtpNames = MtpNames::following_layers;
  using Layer = DeepseekV3Layer;
  static constexpr descriptor::DecoderForm kForm{};
  static constexpr int64_t kBosToken = 0, kEosToken = 1;
  static constexpr std::array kRequiredKeys{
      "num_experts_per_tok",
      "moe_intermediate_size",
      "n_routed_experts",
      "kv_lora_rank",
      "qk_nope_head_dim",
      "qk_rope_head_dim",
      "v_head_dim"};
  static constexpr std::array kOwnKeys{"attention_bias", "head_dim", "num_experts_per_tok"};

  static DeepseekV3LayerParameters layer_parameters(const DecoderConfig& config) {
    const MoEConfig& moe = value_of(config.moe, "experts");
    const LatentAttentionConfig& attention = value_of(config.latent_attention, "latent attention");
    check_deepseek_moe(moe);
    require(
        config.num_key_value_heads == config.num_attention_heads,
        "num_key_value_heads: expected num_attention_heads ({}), because all heads read one latent, found {}",
        config.num_attention_heads,
        config.num_key_value_heads);
    require(
        config.head_dim == attention.qk_rope_head_dim,
        "head_dim: expected qk_rope_head_dim ({}), found {}",
        attention.qk_rope_head_dim,
        config.head_dim);
    return {layer_sizes(config), attention, attention.scale(config.rope_scaling), moe};
  }

  static void read(const Node& config, DecoderConfig& shape) {
    shape.latent_attention = LatentAttentionConfig::from_hf(config);
    shape.head_dim = shape.latent_attention->qk_rope_head_dim;
    shape.moe = read_deepseek_moe(config, {.router = deepseek_router(8, 4, 2.5), .first_k_dense_replace = 3});
    shape.num_nextn_predict_layers = read_mtp_modules(kMtpNames, config);
  }

  static void write(const DecoderConfig& shape, Node& node) {
    write_deepseek_moe(value_of(shape.moe, "experts"), node);
    node.set(descriptor::kMtpModulesKey, Node(shape.mtp_modules()));
    value_of(shape.latent_attention, "latent attention").to_hf(node);
  }
};

DecoderConfig published() {
  MoEConfig moe = deepseek_experts(256, 8, 2048, deepseek_router(8, 4, 2.5));
  moe.n_shared_experts = 1;
  moe.set_dense_layers(3);
  return {
      .vocab_size = 129280,
      .hidden_size = 7168,
      .intermediate_size = 18432,
      .num_hidden_layers = 61,
      .num_attention_heads = 128,
      .num_key_value_heads = 128,
      .head_dim = 64,
      .max_position_embeddings = 163840,
      .rms_norm_eps = 1e-6,
      .rope_theta = 10000,
      .rope_scaling =
          nn::YarnRopeScaling{
              .factor = 40,
              .original_max_position_embeddings = 4096,
              .beta_fast = 32,
              .beta_slow = 1,
              .attention_factor = {},
              .mscale = 1,
              .mscale_all_dim = 1},
      .moe = moe,
      .latent_attention =
          LatentAttentionConfig{
              .q_lora_rank = 1536,
              .kv_lora_rank = 512,
              .qk_nope_head_dim = 128,
              .qk_rope_head_dim = 64,
              .v_head_dim = 128,
              .mscale_all_dim = 1},
      .num_nextn_predict_layers = 1};
}

// https://arxiv.org/abs/2507.20534: more experts, half the heads, no groups, and no module for multi-token prediction.
DecoderConfig kimi_k2() {
  DecoderConfig config = published();
  config.vocab_size = 163840;
  config.num_attention_heads = config.num_key_value_heads = 64;
  config.max_position_embeddings = 131072;
  config.rope_theta = 50000;
  auto& yarn = std::get<nn::YarnRopeScaling>(config.rope_scaling);
  yarn.factor = 32;
  yarn.beta_fast = 1;
  config.bos_token_id = 163584;
  config.eos_token_id = {163585};
  MoEConfig& moe = value_of(config.moe, "experts");
  moe.num_experts = 384;
  moe.router = deepseek_router(1, 1, 2.827);
  moe.set_dense_layers(1);
  config.num_nextn_predict_layers = 0;
  return config;
}

DecoderConfig debug_model() {
  DecoderConfig config = published();
  config.vocab_size = 2048;
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_hidden_layers = 6;
  config.num_attention_heads = config.num_key_value_heads = 8;
  config.head_dim = 16;
  config.max_position_embeddings = 4096;
  config.rope_scaling = nn::NoRopeScaling{};
  config.latent_attention = LatentAttentionConfig{
      .q_lora_rank = 96, .kv_lora_rank = 64, .qk_nope_head_dim = 16, .qk_rope_head_dim = 16, .v_head_dim = 16};
  MoEConfig& moe = value_of(config.moe, "experts");
  moe.num_experts = 32;
  moe.num_experts_per_tok = 4;
  moe.moe_intermediate_size = 192;
  moe.router = deepseek_router(4, 2, 2.5);
  moe.set_dense_layers(1);
  return config;
}
}  // namespace

descriptor::ModelFamily deepseek_v3_family() {
  return make_decoder_family<Family>(
      "deepseek_v3",
      {
          {"debugmodel", debug_model()},
          {"671B", published()},
          {"Kimi-K2-1T", kimi_k2()},
      },
      {"kimi_k2"});
}

LEHR_DEFINE_DECODER_FAMILY(DeepseekV3, deepseek_v3)

}  // namespace lehr::model

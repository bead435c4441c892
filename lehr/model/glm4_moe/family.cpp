#include "lehr/model/glm4_moe/family.h"

#include <array>

#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/deepseek_moe_config.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/rope_config.h"

namespace lehr::model {

namespace {
struct Family {
  static constexpr const char* kModelType = "glm4_moe";
  static constexpr const char* kArchitecture = "Glm4Moe";
  static constexpr MtpNames kMtpNames = MtpNames::following_layers;
  using Layer = Glm4MoELayer;
  static constexpr descriptor::DecoderForm kForm{};
  static constexpr double kNormEps = 1e-5;
  static constexpr std::array kRequiredKeys{
      "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts", "num_key_value_heads"};
  static constexpr std::array kOwnKeys{"attention_bias", "num_experts_per_tok", "partial_rotary_factor"};

  static Glm4MoELayerParameters layer_parameters(const DecoderConfig& config) {
    check_deepseek_moe(value_of(config.moe, "experts"));
    auto params = mixture_parameters(config);
    params.qk_norm = config.qk_norm;
    params.rotary_dim = config.rotary_dim();
    return params;
  }

  static void read(const Node& config, DecoderConfig& shape) {
    shape.moe = read_deepseek_moe(config, {.router = deepseek_router(1, 1, 1), .first_k_dense_replace = 1});
    shape.num_nextn_predict_layers = read_mtp_modules(kMtpNames, config);
    shape.qkv_bias = bool_or(config, "attention_bias", false);
    shape.qk_norm = bool_or(config, "use_qk_norm", false);
    shape.partial_rotary_factor = read_partial_rotary_factor(config, 0.5);
  }

  static void write(const DecoderConfig& shape, Node& node) {
    write_deepseek_moe(value_of(shape.moe, "experts"), node);
    node.set(descriptor::kMtpModulesKey, Node(shape.mtp_modules()));
    node.set("attention_bias", Node(shape.qkv_bias));
    node.set("use_qk_norm", Node(shape.qk_norm));
    node.set("partial_rotary_factor", Node(shape.partial_rotary_factor));
  }
};

struct Size {
  int64_t hidden_size, layers, intermediate_size, experts, expert_intermediate_size, dense_layers;
  double routed_scaling_factor;
  bool qk_norm;
};

DecoderConfig published(const Size& size) {
  const nn::RouterOptions router = deepseek_router(1, 1, size.routed_scaling_factor);
  MoEConfig moe = deepseek_experts(size.experts, 8, size.expert_intermediate_size, router);
  moe.n_shared_experts = 1;
  moe.set_dense_layers(size.dense_layers);
  return {
      .vocab_size = 151552,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = 96,
      .num_key_value_heads = 8,
      .head_dim = 128,
      .max_position_embeddings = 131072,
      .rms_norm_eps = 1e-5,
      .rope_theta = 1e6,
      .eos_token_id = {151329, 151336, 151338},
      .pad_token_id = 151329,
      .moe = moe,
      .qkv_bias = true,
      .partial_rotary_factor = 0.5,
      .qk_norm = size.qk_norm,
      .num_nextn_predict_layers = 1};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 6, 768, 32, 192, 1, 2.5, true});
  set_debug_vocabulary(config);
  config.num_attention_heads = 16;
  config.head_dim = 16;
  config.max_position_embeddings = 4096;
  value_of(config.moe, "experts").num_experts_per_tok = 4;
  return config;
}
}  // namespace

descriptor::ModelFamily glm4_moe_family() {
  return make_decoder_family<Family>(
      "glm4_moe",
      {
          {"debugmodel", debug_model()},
          {"Air-106B", published({4096, 46, 10944, 128, 1408, 1, 1.0, false})},
          {"355B", published({5120, 92, 12288, 160, 1536, 3, 2.5, true})},
      });
}

LEHR_DEFINE_DECODER_FAMILY(Glm4MoE, glm4_moe)

}  // namespace lehr::model

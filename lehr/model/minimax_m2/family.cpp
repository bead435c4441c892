#include "lehr/model/minimax_m2/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/deepseek_moe_config.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/mixtral/state_map.h"
#include "lehr/model/rope_config.h"
#include "lehr/model/supported_values.h"

namespace lehr::model {

namespace {
// Without DeepSeek-V3's groups and scaling factor.
constexpr nn::RouterOptions kRouter{.score = nn::RouterScore::sigmoid};

// Refuses other values of keys in published files that transformers' class does not read: it computes models with these
// values only.
void refuse_other_models(const Node& config) {
  require_supported(config, "scoring_func", "sigmoid");
  require_supported(config, "use_routing_bias", true);
  require_supported(config, "use_qk_norm", true);
  require_supported(config, "qk_norm_type", "per_layer");
  require_supported(config, "shared_intermediate_size", int64_t{0});
  const Node* types = config.find("attn_type_list");
  for (size_t layer = 0; types != nullptr && !types->is_null() && layer < types->size(); ++layer) {
    require(
        types->at(layer).as_int() == 1,
        "{}: attn_type_list: expected 1 (softmax attention) in every layer, found {} in layer {}; this is not "
        "supported",
        config.origin(),
        types->at(layer).as_int(),
        layer);
  }
}

struct Family {
  static constexpr const char* kModelType = "minimax_m2";
  static constexpr const char* kArchitecture = "MiniMaxM2";
  using Layer = MiniMaxM2Layer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .qk_norm_width = nn::QKNormWidth::full};
  static constexpr int64_t kBosToken = 200034, kEosToken = 200020;
  static constexpr std::array kRequiredKeys{"num_experts_per_tok", "num_key_value_heads", "head_dim"};
  // transformers' class does not read the biases.
  static constexpr std::array kOwnKeys{"attention_bias", "mlp_bias", "partial_rotary_factor"};

  static MiniMaxM2LayerParameters layer_parameters(const DecoderConfig& config) {
    auto params = mixture_parameters(config);
    check_uniform_experts(params.moe, kModelType);
    check_expert_bias(params.moe);
    params.qk_norm_width = nn::QKNormWidth::full;
    params.rotary_dim = config.rotary_dim();
    return params;
  }

  static void read(const Node& config, DecoderConfig& shape) {
    refuse_other_models(config);
    require_supported(config, "router_jitter_noise", 0.0);
    require_one_expert_width(config);
    shape.rope_theta = read_rope_theta(config, 5e6);
    const int64_t rotary_dim = int_or(config, "rotary_dim", shape.head_dim);  // the key of published files
    shape.partial_rotary_factor =
        read_partial_rotary_factor(config, static_cast<double>(rotary_dim) / static_cast<double>(shape.head_dim));
    if (shape.moe) {  // else layer_parameters names the missing key
      set_uniform_experts(*shape.moe);
      shape.moe->expert_bias = true;
      shape.moe->router = kRouter;
    }
  }

  static void write(const DecoderConfig& shape, Node& node) {
    write_uniform_experts(value_of(shape.moe, "experts"), !shape.block_configs.empty(), node);
    node.erase("expert_bias");
    node.set("partial_rotary_factor", Node(shape.partial_rotary_factor));
    node.set("rotary_dim", Node(shape.rotary_dim()));
    node.set("router_jitter_noise", Node(0.0));
  }
};

class MiniMaxM2Args : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    const state::StateMap map = with_expert_bias_beside_gate(DecoderArgs<Family>::state_map(layout));
    const bool fused = layout == descriptor::ExpertLayout::fused;  // as transformers 5 names its modules
    return fused ? map : with_block_sparse_moe_names(map);
  }
};

DecoderConfig published() {
  return {
      .vocab_size = 200064,
      .hidden_size = 3072,
      .intermediate_size = 1536,
      .num_hidden_layers = 62,
      .num_attention_heads = 48,
      .num_key_value_heads = 8,
      .head_dim = 128,
      .max_position_embeddings = 196608,
      .rms_norm_eps = 1e-6,
      .rope_theta = 5e6,
      .eos_token_id = {200020},
      .moe =
          MoEConfig{
              .num_experts = 256,
              .num_experts_per_tok = 8,
              .moe_intermediate_size = 1536,
              .expert_bias = true,
              .uses_intermediate_size = true,
              .router = kRouter},
      .partial_rotary_factor = 0.5};
}

DecoderConfig debug_model() {
  DecoderConfig config = published();
  set_debug_vocabulary(config);
  config.hidden_size = 256;
  config.intermediate_size = 192;
  config.num_hidden_layers = 6;
  config.num_attention_heads = 16;
  config.head_dim = 16;
  config.max_position_embeddings = 4096;
  MoEConfig& moe = value_of(config.moe, "experts");
  moe.num_experts = 32;
  moe.num_experts_per_tok = 4;
  moe.moe_intermediate_size = 192;
  return config;
}
}  // namespace

descriptor::ModelFamily minimax_m2_family() {
  return make_decoder_family<Family, MiniMaxM2Args>(
      "minimax_m2", {{"debugmodel", debug_model()}, {"230B-A10B", published()}});
}

LEHR_DEFINE_DECODER_FAMILY(MiniMaxM2, minimax_m2)

}  // namespace lehr::model

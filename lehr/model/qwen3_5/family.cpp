#include "lehr/model/qwen3_5/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/qwen3_5/state_map.h"
#include "lehr/model/rope_config.h"
#include "lehr/model/supported_values.h"

namespace lehr::model {

namespace {
const LinearAttentionConfig& linear_of(const DecoderConfig& config) {
  return value_of(config.linear_attention, "linear attention");
}

struct Dense {
  static constexpr const char* kModelType = "qwen3_5_text";
  static constexpr const char* kArchitecture = "Qwen3_5";
  static constexpr MtpNames kMtpNames = MtpNames::own_module;
  using Layer = Qwen3_5Layer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .output_gate = true};
  static constexpr nn::NormWeight kNormWeight = nn::NormWeight::zero_centered;
  static constexpr std::array kRequiredKeys{"head_dim", "num_key_value_heads", "intermediate_size"};
  // transformers' class reads no use_sliding_window.
  static constexpr std::array kOwnKeys{"layer_types", "partial_rotary_factor", "use_sliding_window"};

  static Qwen3_5LayerParameters layer_parameters(const DecoderConfig& config) {
    require(
        !config.moe,
        "num_experts_per_tok: models of type {} have no experts; remove the keys of experts, or set model_type to {}",
        kModelType,
        "qwen3_5_moe_text");
    return hybrid_parameters(config);
  }

  static void read(const Node& config, DecoderConfig& shape) {
    require_supported(config, "attn_output_gate", true);
    shape.linear_attention = LinearAttentionConfig::from_hf(config, shape.num_hidden_layers);
    shape.partial_rotary_factor = read_partial_rotary_factor(config, 0.25);
    const bool is_ours = config.find(descriptor::kMtpModulesKey) != nullptr;  // a folder that Lehr wrote
    const int64_t modules =
        is_ours ? read_mtp_modules(kMtpNames, config) : int_or(config, descriptor::kMtpLayersKey, 1);
    require(
        modules == 0 || modules == 1,
        "{}: {}: expected 0 or 1, the modules for multi-token prediction that checkpoints of this model type have "
        "names for, found {}",
        config.origin(),
        descriptor::kMtpLayersKey,
        modules);
    shape.num_nextn_predict_layers = modules;
  }

  static void write(const DecoderConfig& shape, Node& node) {
    linear_of(shape).to_hf(node, shape.num_hidden_layers);
    node.set("partial_rotary_factor", Node(shape.partial_rotary_factor));
    node.set(descriptor::kMtpModulesKey, Node(shape.mtp_modules()));
    node.set(descriptor::kMtpLayersKey, Node(shape.mtp_modules()));  // the published key, for other programs
  }
};

struct MoE : Dense {
  static constexpr const char* kModelType = "qwen3_5_moe_text";
  static constexpr const char* kArchitecture = "Qwen3_5Moe";
  using Layer = Qwen3_5MoELayer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .output_gate = true, .shared_expert_gate = true};
  static constexpr std::array kRequiredKeys{
      "head_dim",
      "num_key_value_heads",
      "num_experts",
      "num_experts_per_tok",
      "moe_intermediate_size",
      "shared_expert_intermediate_size"};
  static constexpr std::array kOwnKeys{
      "layer_types", "partial_rotary_factor", "use_sliding_window", "intermediate_size"};

  static Qwen3_5MoELayerParameters layer_parameters(const DecoderConfig& config) {
    check_uniform_experts(value_of(config.moe, "experts"), kModelType);
    return hybrid_parameters(config);
  }

  static void read(const Node& config, DecoderConfig& shape) {
    Dense::read(config, shape);
    MoEConfig& moe = value_of(shape.moe, "experts");
    set_uniform_experts(moe);
    moe.uses_intermediate_size = false;
    moe.shared_expert_intermediate_size = config.at("shared_expert_intermediate_size").as_int();
    require_size(config.origin() + ": ", "shared_expert_intermediate_size", moe.shared_expert_intermediate_size);
    shape.intermediate_size = moe.moe_intermediate_size;  // of layers without experts, which block configs may make
  }

  static void write(const DecoderConfig& shape, Node& node) {
    Dense::write(shape, node);
    for (const char* key : {"decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "intermediate_size"}) {
      node.erase(key);
    }
    node.set("shared_expert_intermediate_size", Node(value_of(shape.moe, "experts").shared_expert_intermediate_size));
  }
};

/// Published checkpoints have other tensors for the projections of gated DeltaNet.
template <class Family>
class Args : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    return with_qwen3_5_names(DecoderArgs<Family>::state_map(layout), linear_of(this->config()));
  }
};

struct Size {
  int64_t hidden_size, intermediate_size, layers, heads, key_value_heads,
      value_heads;  // of gated DeltaNet: 16 key heads
  std::optional<MoEConfig> moe = {};
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 248320,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = 256,
      .max_position_embeddings = 262144,
      .rope_theta = 1e7,
      .eos_token_id = {248044},
      .moe = size.moe,
      .partial_rotary_factor = 0.25,
      .linear_attention = LinearAttentionConfig{.linear_num_value_heads = size.value_heads},
      .num_nextn_predict_layers = 1};
}

MoEConfig experts(int64_t count, int64_t per_token, int64_t width) {
  return {
      .num_experts = count,
      .num_experts_per_tok = per_token,
      .moe_intermediate_size = width,
      .shared_expert_intermediate_size = width};
}

DecoderConfig debug_model(std::optional<MoEConfig> moe) {
  const int64_t width = moe ? moe->moe_intermediate_size : 768;
  DecoderConfig config = published({256, width, 8, 8, 4, 8, std::move(moe)});
  set_debug_vocabulary(config);
  config.head_dim = 32;
  config.max_position_embeddings = 4096;
  config.linear_attention = LinearAttentionConfig{
      .linear_key_head_dim = 16, .linear_value_head_dim = 16, .linear_num_key_heads = 4, .linear_num_value_heads = 8};
  return config;
}
}  // namespace

descriptor::ModelFamily qwen3_5_family() {
  return make_decoder_family<Dense, Args<Dense>>(
      "qwen3_5",
      {{"debugmodel", debug_model({})},
       {"9B", published({4096, 12288, 32, 16, 4, 32})},
       {"27B", published({5120, 17408, 64, 24, 4, 48})}});
}

descriptor::ModelFamily qwen3_5_moe_family() {
  return make_decoder_family<MoE, Args<MoE>>(
      "qwen3_5_moe",
      {{"debugmodel", debug_model(experts(32, 4, 128))},
       {"35B-A3B", published({2048, 512, 40, 16, 2, 32, experts(256, 8, 512)})},
       {"397B-A17B", published({4096, 1024, 60, 32, 2, 64, experts(512, 10, 1024)})}});
}

LEHR_DEFINE_DECODER_FAMILY(Qwen3_5, qwen3_5)
LEHR_DEFINE_DECODER_FAMILY(Qwen3_5MoE, qwen3_5_moe)

}  // namespace lehr::model

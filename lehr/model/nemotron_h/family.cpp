#include "lehr/model/nemotron_h/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/deepseek_moe_config.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/latent_moe_config.h"
#include "lehr/model/mixer_args.h"
#include "lehr/model/supported_values.h"

namespace lehr::model {

template class DecoderImpl<NemotronHLayer, NemotronHLayerParameters>;

namespace {
struct Family {
  static constexpr const char* kModelType = "nemotron_h";
  static constexpr const char* kArchitecture = "NemotronH";
  using Layer = NemotronHLayer;
  static constexpr descriptor::DecoderForm kForm{.ffn_matrices = 2};
  static constexpr int64_t kBosToken = 1, kEosToken = 2, kPadToken = 0, kKeyValueHeads = 8;
  // transformers' class does not read the first three.
  static constexpr std::array kOwnKeys{
      "hidden_act", "partial_rotary_factor", "use_sliding_window", "head_dim", "num_experts_per_tok"};

  static NemotronHLayerParameters layer_parameters(const DecoderConfig& config) {
    require(
        !config.tie_word_embeddings,
        "tie_word_embeddings: expected false, found true: in transformers, models of type nemotron_h have a head of "
        "their own in any case");
    if (config.moe) {
      check_latent_moe(*config.moe);
    }
    return {layer_sizes(config), mamba_of(config), config.moe};
  }

  static void read(const Node& config, DecoderConfig& shape) {
    require_supported(config, "use_bias", false);
    require_supported(config, "mamba_hidden_act", "silu");
    require_supported(config, "mlp_hidden_act", "relu2");
    shape.head_dim = int_or(config, "head_dim", 128);
    // The key of NVIDIA's class, which transformers' does not read.
    require_supported(config, "attention_head_dim", shape.head_dim);
    shape.rms_norm_eps = double_or(config, "layer_norm_epsilon", 1e-5);
    shape.mamba2 = Mamba2Config::from_hf(config, shape.num_hidden_layers);
    if (shape.mamba2->has_experts()) {
      shape.moe = read_latent_moe(config);
    }
  }

  static void write(const DecoderConfig& shape, Node& node) {
    for (const char* key : {"hidden_act", "rope_scaling", "rope_theta"}) {
      node.erase(key);
    }
    if (shape.moe) {
      write_latent_moe(*shape.moe, node);
    }
    mamba_of(shape).to_hf(node, shape.num_hidden_layers);
    node.set("layer_norm_epsilon", Node(shape.rms_norm_eps));
    node.set("mlp_hidden_act", Node("relu2"));
  }
};

using NemotronHArgs = MixerArgs<Family>;

struct Size {
  int64_t hidden_size, intermediate_size, heads, mamba_heads, mamba_head_dim, state_size, max_position_embeddings;
  std::string pattern;
  int64_t key_value_heads = 8;
  std::optional<MoEConfig> moe = {};
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 131072,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = static_cast<int64_t>(size.pattern.size()),
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = 128,
      .max_position_embeddings = size.max_position_embeddings,
      .rms_norm_eps = 1e-5,
      .bos_token_id = 1,
      .eos_token_id = {2},
      .pad_token_id = 0,
      .moe = size.moe,
      .mamba2 = Mamba2Config{
          .mamba_num_heads = size.mamba_heads,
          .mamba_head_dim = size.mamba_head_dim,
          .ssm_state_size = size.state_size,
          .pattern = size.pattern}};
}

DecoderConfig debug_model(const std::string& pattern, std::optional<MoEConfig> moe = {}) {
  DecoderConfig config = published({256, 768, 8, 8, 32, 16, 4096, pattern, 4, std::move(moe)});
  set_debug_vocabulary(config);
  config.head_dim = 32;
  value_of(config.mamba2, "mamba2").n_groups = 4;
  return config;
}

// `shared_width` is that of the shared expert.
MoEConfig with_shared_expert(MoEConfig experts, int64_t shared_width, int64_t latent_size = 0) {
  experts.shared_expert_intermediate_size = shared_width;
  experts.moe_latent_size = latent_size;
  return experts;
}
}  // namespace

descriptor::ModelFamily nemotron_h_family() {
  const std::string of_8b = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
  const std::string of_47b =
      "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-";
  std::string of_56b = "M-M-M-M*-";
  for (int64_t i = 0; i < 9; ++i) {
    of_56b += "M-M-M-M-M*-";
  }
  of_56b += "M-M-M-M-M-";
  const std::string of_nano_9b = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
  const std::string of_nano_12b = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-";
  const std::string of_nano_30b = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
  const std::string of_super =
      "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
  const auto nano_30b = with_shared_expert(deepseek_experts(128, 6, 1856, deepseek_router(1, 1, 2.5)), 3712);
  const auto super = with_shared_expert(deepseek_experts(512, 22, 2688, deepseek_router(1, 1, 5)), 5376, 1024);
  const auto small = deepseek_experts(32, 4, 192, deepseek_router(4, 2, 2.5));
  auto family = make_decoder_family<Family, NemotronHArgs>(
      "nemotron_h",
      {
          {"debugmodel", debug_model("M*-M-M*-")},
          {"debugmodel_moe", debug_model("M*E-MEM*", with_shared_expert(small, 320))},
          {"8B", published({4096, 21504, 32, 128, 64, 128, 8192, of_8b})},
          {"47B", published({8192, 30720, 64, 256, 64, 256, 8192, of_47b})},
          {"56B", published({8192, 32768, 64, 256, 64, 256, 8192, of_56b})},
          {"Nano-9B-v2", published({4480, 15680, 40, 128, 80, 128, 131072, of_nano_9b})},
          {"Nano-12B-v2", published({5120, 20480, 40, 128, 80, 128, 131072, of_nano_12b})},
          {"Nano-30B-A3B", published({2688, 1856, 32, 64, 64, 128, 262144, of_nano_30b, 2, nano_30b})},
          {"Super-120B-A12B", published({4096, 2688, 32, 128, 64, 128, 262144, of_super, 2, super})},
      });
  // A shape with all weights that a layer may have.
  family.descriptor = std::make_shared<MixerDescriptor<NemotronHArgs>>(
      debug_model("M*E-MEM*", with_shared_expert(small, 320, /*latent_size=*/64)));
  return family;
}

LEHR_DEFINE_DECODER_FAMILY(NemotronH, nemotron_h)

}  // namespace lehr::model

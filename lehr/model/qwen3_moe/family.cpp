#include "lehr/model/qwen3_moe/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/define_decoder_family.h"

namespace lehr::model {

template class DecoderImpl<Qwen3MoELayer, Qwen3MoELayerParameters>;
LEHR_DEFINE_DECODER_FAMILY(Qwen3MoE, qwen3_moe)

Qwen3MoELayerParameters mixture_parameters(const DecoderConfig& config) {
  if (!config.moe) {
    fail("num_experts_per_tok: expected the number of experts of a token, found none");
  }
  Qwen3MoELayerParameters params{layer_sizes(config)};
  params.moe = *config.moe;
  params.qkv_bias = config.qkv_bias;
  params.output_bias = config.output_bias;
  params.pattern = config.pattern;
  return params;
}

namespace {
struct Family {
  static constexpr const char* kModelType = "qwen3_moe";
  static constexpr const char* kArchitecture = "Qwen3Moe";
  using Layer = Qwen3MoELayer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true};
  static constexpr std::array kRequiredKeys{"num_experts_per_tok", "moe_intermediate_size", "num_key_value_heads"};
  static constexpr std::array kOwnKeys{"use_sliding_window"};

  static Qwen3MoELayerParameters layer_parameters(const DecoderConfig& config) { return mixture_parameters(config); }

  // All layers have the window, unlike in Qwen3's dense models.
  static void read(const Node& config, DecoderConfig& shape) {
    if (bool_or(config, "use_sliding_window", false)) {
      const bool absent = config.find("sliding_window") == nullptr;
      shape.pattern = with_window(absent ? 4096 : optional_int(config, "sliding_window"));
    }
  }

  static void write(const DecoderConfig& shape, Node& node) {
    const auto window = shape.pattern.window(0);
    node.set("sliding_window", number_or_null(window));
    node.set("use_sliding_window", Node(window.has_value()));
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size, experts, top_k, expert_intermediate_size;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 151936,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = 128,
      .max_position_embeddings = 40960,
      .rms_norm_eps = 1e-6,
      .rope_theta = 1e6,
      .moe = MoEConfig{
          .num_experts = size.experts,
          .num_experts_per_tok = size.top_k,
          .moe_intermediate_size = size.expert_intermediate_size}};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 8, 16, 8, 3072, 64, 8, 768});
  config.vocab_size = 2048;
  config.max_position_embeddings = 4096;
  return config;
}
}  // namespace

descriptor::ModelFamily qwen3_moe_family() {
  return make_decoder_family<Family>(
      "qwen3_moe",
      {
          {"debugmodel", debug_model()},
          {"30B-A3B", published({2048, 48, 32, 4, 6144, 128, 8, 768})},
          {"235B-A22B", published({4096, 94, 64, 4, 12288, 128, 8, 1536})},
      });
}

}  // namespace lehr::model

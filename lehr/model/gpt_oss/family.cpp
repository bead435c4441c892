#include "lehr/model/gpt_oss/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/layer_keys.h"
#include "lehr/model/rope_config.h"
#include "lehr/model/stored_names.h"

namespace lehr::model {

namespace {
constexpr double kTheta = 150000;

nn::YarnRopeScaling yarn() {
  return {.factor = 32, .original_max_position_embeddings = 4096, .beta_fast = 32, .beta_slow = 1, .truncate = false};
}

struct Family {
  static constexpr const char* kModelType = "gpt_oss";
  static constexpr const char* kArchitecture = "GptOss";
  using Layer = GptOssLayer;
  static constexpr descriptor::DecoderForm kForm{.attention_sinks = true, .ffn_bias = true, .router_bias = true};
  static constexpr double kNormEps = 1e-5;
  static constexpr std::array kRequiredKeys{"num_experts_per_tok", "num_key_value_heads", "head_dim"};
  // The second and third are not read by transformers' class.
  static constexpr std::array kOwnKeys{"attention_bias", "mlp_bias", "use_sliding_window", "layer_types"};

  static GptOssLayerParameters layer_parameters(const DecoderConfig& config) {
    auto params = mixture_parameters(config);
    check_uniform_experts(value_of(config.moe, "experts"), kModelType);
    params.qk_norm = false;
    params.sinks = true;
    return params;
  }

  static void read(const Node& config, DecoderConfig& shape) {
    require_one_expert_width(config);
    shape.qkv_bias = shape.output_bias = bool_or(config, "attention_bias", true);
    shape.rope_theta = read_rope_theta(config, kTheta);
    const Node* parameters = config.find("rope_parameters");
    if (rope_table_of(config) == nullptr && (parameters == nullptr || parameters->is_null())) {
      shape.rope_scaling = yarn();
    }
    shape.pattern = {
        .sliding_window = config.find("sliding_window") == nullptr ? 128 : optional_int(config, "sliding_window"),
        .sliding = read_layer_types(config, shape.num_hidden_layers).value_or(std::vector<bool>{true, false})};
    if (!shape.moe) {
      return;  // layer_parameters names the missing key
    }
    set_uniform_experts(*shape.moe);
    const ops::SwiGLUClamp clamp{
        .limit = double_or(config, "swiglu_limit", 7), .alpha = double_or(config, "swiglu_alpha", 1.702)};
    require(clamp.limit > 0, "{}: swiglu_limit: expected a positive number, found {}", config.origin(), clamp.limit);
    shape.moe->router.gate_bias = true;
    shape.moe->experts = {.bias = true, .clamp = clamp};
  }

  static void write(const DecoderConfig& shape, Node& node) {
    const MoEConfig& moe = value_of(shape.moe, "experts");
    const ops::SwiGLUClamp clamp = value_of(moe.experts.clamp, "swiglu_limit");
    write_uniform_experts(moe, !shape.block_configs.empty(), node);
    write_layer_types(shape, node);
    node.set("swiglu_alpha", Node(clamp.alpha));
    node.set("swiglu_limit", Node(clamp.limit));
    if (node.at("rope_scaling").is_null()) {  // which would be YaRN
      Node plain = Node::make_table();
      plain.set("rope_theta", Node(shape.rope_theta));
      plain.set("rope_type", Node("default"));
      node.set("rope_parameters", plain);
    }
  }
};

/// Published checkpoints have one layout, and name the router so.
class GptOssArgs : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  void check(const std::string& where) const override {
    DecoderArgs<Family>::check(where);
    for (size_t layer = 0; layer < config().block_configs.size(); ++layer) {
      require(
          !std::holds_alternative<descriptor::FFNSubblock>(config().block_configs[layer].ffn),
          "{}block_configs[{}].ffn: models of type gpt_oss have experts in every layer; expected moe, or no_op",
          where,
          layer);
    }
  }

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    return with_stored_names(DecoderArgs<Family>::state_map(layout), [](std::string name) {
      replace_in_name(name, ".mlp.gate.", ".mlp.router.");
      return name;
    });
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, head_dim, intermediate_size, experts;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 201088,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = size.head_dim,
      .max_position_embeddings = 131072,
      .rms_norm_eps = 1e-5,
      .rope_theta = kTheta,
      .rope_scaling = yarn(),
      .eos_token_id = {200002},
      .pad_token_id = 199999,
      .moe =
          MoEConfig{
              .num_experts = size.experts,
              .num_experts_per_tok = 4,
              .moe_intermediate_size = size.intermediate_size,
              .router_aux_loss_coef = 0.9,
              .uses_intermediate_size = true,
              .router = {.gate_bias = true},
              .experts = {.bias = true, .clamp = ops::SwiGLUClamp{}}},
      .qkv_bias = true,
      .output_bias = true,
      .pattern = {.sliding_window = 128, .sliding = {true, false}}};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 6, 16, 8, 16, 192, 32});
  set_debug_vocabulary(config);
  config.max_position_embeddings = 4096;
  config.rope_scaling = nn::NoRopeScaling{};
  config.pattern.sliding_window = 9;
  return config;
}
}  // namespace

descriptor::ModelFamily gpt_oss_family() {
  return make_decoder_family<Family, GptOssArgs>(
      "gpt_oss",
      {
          {"debugmodel", debug_model()},
          {"20b", published({2880, 24, 64, 8, 64, 2880, 32})},
          {"120b", published({2880, 36, 64, 8, 64, 2880, 128})},
      });
}

LEHR_DEFINE_DECODER_FAMILY(GptOss, gpt_oss)

}  // namespace lehr::model

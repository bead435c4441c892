#include "lehr/model/gemma4/family.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/debug_vocabulary.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/gemma4/heads.h"
#include "lehr/model/layer_keys.h"
#include "lehr/model/moe_parameters.h"
#include "lehr/model/stored_names.h"
#include "lehr/model/supported_values.h"

namespace lehr::model {

template class DecoderImpl<Gemma4Layer, Gemma4LayerParameters>;

namespace {
constexpr const char* kActivation = "gelu_pytorch_tanh";

Rope full_rope() {
  return {.theta = 1e6, .scaling = nn::ProportionalRopeScaling{.partial_rotary_factor = 0.25}};
}

void refuse_unsupported(const Node& config) {
  require_supported(config, "hidden_activation", kActivation);
  const Node* bidirectional = config.find("use_bidirectional_attention");
  const std::string of = bidirectional == nullptr || bidirectional->is_null() ? "null" : bidirectional->as_string();
  require(
      of == "null" || of == "vision",
      "{}: use_bidirectional_attention: expected null or vision (of images only), found {}; this is not supported",
      config.origin(),
      of);
  for (const char* key : {"block_configs", "rope_scaling", "rope_theta"}) {
    const Node* found = config.find(key);
    require(
        found == nullptr || found->is_null(),
        "{}: {}: expected {}",
        config.origin(),
        key,
        std::string_view(key) == "block_configs"
            ? "no such key; models of type gemma4_text do not support layers that differ otherwise than in layer_types"
            : "tables in rope_parameters in place of this key, which transformers does not read in models of this type");
  }
}

MoEConfig experts(int64_t count, int64_t per_token, int64_t width) {
  return {
      .num_experts = count,
      .num_experts_per_tok = per_token,
      .moe_intermediate_size = width,
      .beside_dense = true,
      .router = {.input_norm_eps = 1e-6, .per_expert_scale = true},
      .experts = {.gelu_tanh = true}};
}

struct Family {
  static constexpr const char* kModelType = "gemma4_text";
  static constexpr const char* kArchitecture = "Gemma4";
  using Layer = Gemma4Layer;
  static constexpr descriptor::DecoderForm kForm{
      .attention_norms = 2, .ffn_norms = 2, .qk_norm = true, .router_scales = true};
  static constexpr int64_t kBosToken = 2, kEosToken = 1, kPadToken = 0;
  static constexpr std::array kRequiredKeys{"head_dim", "num_key_value_heads"};
  static constexpr std::array kOwnKeys{
      "hidden_act", "layer_types", "rope_parameters", "num_experts_per_tok", kPerLayerConfig};

  static double embedding_factor(const DecoderConfig& shape) {
    return std::sqrt(static_cast<double>(shape.hidden_size));
  }

  static Gemma4LayerParameters layer_parameters(const DecoderConfig& config) {
    Gemma4LayerParameters params{
        .hidden_size = config.hidden_size,
        .intermediate_size = config.intermediate_size,
        .num_attention_heads = config.num_attention_heads,
        .num_key_value_heads = config.num_key_value_heads,
        .rms_norm_eps = config.rms_norm_eps,
        .head_dim = config.head_dim,
        .initializer_range = config.initializer_range,
        .full_attention = value_of(config.full_attention, "full attention"),
        .hidden_size_per_layer_input = config.hidden_size_per_layer_input,
        .num_hidden_layers = config.num_hidden_layers,
        .num_kv_shared_layers = config.num_kv_shared_layers,
        .use_double_wide_mlp = config.use_double_wide_mlp,
        .qkv_bias = config.qkv_bias,
        .output_bias = config.output_bias,
        .pattern = config.pattern};
    const int64_t most = most_shared_layers(config.pattern, config.num_hidden_layers);
    require(
        config.num_kv_shared_layers >= 0 && config.num_kv_shared_layers <= most,
        "num_kv_shared_layers: expected a number from 0 to {}, so that at least one layer of each type precedes the "
        "shared ones, found {}",
        most,
        config.num_kv_shared_layers);
    if (params.full_attention.num_key_value_heads == 0) {
      params.full_attention.num_key_value_heads = config.num_key_value_heads;
    }
    if (config.moe) {
      check_uniform_experts(*config.moe, kModelType);
      params.moe = moe_parameters(*config.moe, layer_sizes(config));
      params.moe->router_options.input_norm_eps = config.rms_norm_eps;
    }
    return params;
  }

  // The last layer has full attention, as in transformers' class. If the model was shortened, num_kv_shared_layers is
  // lowered until a layer of each type precedes the shared ones.
  static void adjust(DecoderConfig& shape) {
    const int64_t last = shape.num_hidden_layers - 1;
    if (last < 0 || last >= kMostLayers) {
      return;
    }
    if (shape.pattern.slides(last)) {
      std::vector<bool> sliding;
      for (int64_t layer = 0; layer <= last; ++layer) {
        sliding.push_back(layer < last && shape.pattern.slides(layer));
      }
      shape.pattern.sliding = std::move(sliding);
    }
    shape.num_kv_shared_layers =
        std::min(shape.num_kv_shared_layers, most_shared_layers(shape.pattern, shape.num_hidden_layers));
  }

  static void read(const Node& config, DecoderConfig& shape) {
    refuse_unsupported(config);
    shape.pattern.sliding_window =
        config.find("sliding_window") == nullptr ? 512 : optional_int(config, "sliding_window");
    shape.pattern.sliding = read_layer_types(config, shape.num_hidden_layers).value_or(all_but_every(6));
    adjust(shape);
    read_layer_ropes(config, full_rope(), {}, nullptr, shape, /*proportional=*/true);
    shape.full_attention = read_full_attention_heads(config, shape);
    shape.hidden_size_per_layer_input = int_or(config, "hidden_size_per_layer_input", 256);
    shape.num_kv_shared_layers = int_or(config, "num_kv_shared_layers", 0);
    shape.use_double_wide_mlp = bool_or(config, "use_double_wide_mlp", false);
    const int64_t rows = int_or(config, "vocab_size_per_layer_input", 262144);
    require(
        shape.hidden_size_per_layer_input == 0 || rows == shape.vocab_size,
        "{}: vocab_size_per_layer_input: expected vocab_size ({}), found {}; this is not supported",
        config.origin(),
        shape.vocab_size,
        rows);
    shape.final_logit_softcapping = optional_double(config, "final_logit_softcapping");
    shape.tie_word_embeddings = bool_or(config, "tie_word_embeddings", true);
    if (bool_or(config, "enable_moe_block", false)) {
      shape.moe = experts(
          config.at("num_experts").as_int(),
          config.at("top_k_experts").as_int(),
          config.at("moe_intermediate_size").as_int());
      shape.moe->expert_bias = bool_or(config, "expert_bias", false);
    }
  }

  static void write(const DecoderConfig& shape, Node& node) {
    for (const char* key :
         {"hidden_act",
          "rope_scaling",
          "rope_theta",
          "decoder_sparse_step",
          "mlp_only_layers",
          "norm_topk_prob",
          "num_experts_per_tok",
          "router_aux_loss_coef"}) {
      node.erase(key);
    }
    node.set("hidden_activation", Node(kActivation));
    node.set("final_logit_softcapping", shape.final_logit_softcapping ? Node(*shape.final_logit_softcapping) : Node());
    node.set("hidden_size_per_layer_input", Node(shape.hidden_size_per_layer_input));
    node.set("vocab_size_per_layer_input", Node(shape.vocab_size));
    node.set("num_kv_shared_layers", Node(shape.num_kv_shared_layers));
    node.set("use_double_wide_mlp", Node(shape.use_double_wide_mlp));
    node.set("enable_moe_block", Node(shape.moe.has_value()));
    if (shape.moe) {
      node.set("top_k_experts", Node(shape.moe->num_experts_per_tok));
    }
    write_full_attention_heads(shape, node);
    write_layer_types(shape, node);
    write_layer_ropes(shape, node);
  }
};

/// Published checkpoints have one layout, and the router and the experts directly in the layer.
class Gemma4Args : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  state::StateMap state_map(descriptor::ExpertLayout /*layout*/) const override {
    return with_stored_names(DecoderArgs<Family>::state_map(descriptor::ExpertLayout::fused), [](std::string name) {
      replace_in_name(name, ".moe.", ".");
      replace_in_name(name, ".router.gate.", ".router.proj.");
      replace_in_name(name, ".per_layer.", ".");
      return name;
    });
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, global_key_value_heads, intermediate_size;
  std::optional<MoEConfig> moe = {};
};

// Models whose full layers have as many KV heads as the others, and which share keys and values.
struct SmallSize {
  int64_t hidden_size, layers, key_value_heads, intermediate_size, shared_layers, full_every;
  bool double_wide;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 262144,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = 256,
      .max_position_embeddings = 262144,
      .rms_norm_eps = 1e-6,
      .rope_theta = full_rope().theta,
      .rope_scaling = full_rope().scaling,
      .tie_word_embeddings = true,
      .moe = size.moe,
      .pattern = {.sliding_window = 1024, .sliding = all_but_every(6)},
      .sliding_rope = Rope{},
      .full_attention =
          FullAttentionHeads{
              .head_dim = 512, .num_key_value_heads = size.global_key_value_heads, .keys_as_values = true},
      .final_logit_softcapping = 30};
}

DecoderConfig published_small(const SmallSize& size) {
  DecoderConfig config = published({size.hidden_size, size.layers, 8, size.key_value_heads, 0, size.intermediate_size});
  config.max_position_embeddings = 131072;
  config.pattern = {.sliding_window = 512, .sliding = all_but_every(size.full_every)};
  config.full_attention = FullAttentionHeads{.head_dim = 512};
  config.hidden_size_per_layer_input = 256;
  config.num_kv_shared_layers = size.shared_layers;
  config.use_double_wide_mlp = size.double_wide;
  return config;
}

DecoderConfig debug_model(DecoderConfig config) {
  set_debug_vocabulary(config);
  config.head_dim = 16;
  config.max_position_embeddings = 4096;
  config.pattern = {.sliding_window = 9, .sliding = {true, false}};
  value_of(config.full_attention, "full attention").head_dim = 32;
  return config;
}

DecoderConfig debug_model_small() {
  DecoderConfig config = debug_model(published_small({256, 8, 4, 512, 4, 2, true}));
  config.hidden_size_per_layer_input = 32;
  return config;
}
}  // namespace

descriptor::ModelFamily gemma4_family() {
  return make_decoder_family<Family, Gemma4Args>(
      "gemma4",
      {{"debugmodel", debug_model(published({256, 8, 16, 8, 4, 768}))},
       {"debugmodel_moe", debug_model(published({256, 8, 16, 8, 4, 768, experts(32, 4, 128)}))},
       {"debugmodel_small", debug_model_small()},
       {"E2B", published_small({1536, 35, 1, 6144, 20, 5, true})},
       {"E4B", published_small({2560, 42, 2, 10240, 18, 6, false})},
       {"31B", published({5376, 60, 32, 16, 4, 21504})},
       {"26B-A4B", published({2816, 30, 16, 8, 2, 2112, experts(128, 8, 704)})}});
}

LEHR_DEFINE_DECODER_FAMILY(Gemma4, gemma4)

}  // namespace lehr::model

#include "lehr/model/gemma3/family.h"

#include <array>
#include <cmath>

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/layer_keys.h"

namespace lehr::model {

template class DecoderImpl<Gemma3Layer, Gemma3LayerParameters>;

namespace {
constexpr const char* kActivation = "gelu_pytorch_tanh";
constexpr const char* kLocalTheta = "rope_local_base_freq";
constexpr double kFullTheta = 1e6, kSlidingTheta = 1e4;

double scale_of(double query_pre_attn_scalar) {
  return 1 / std::sqrt(query_pre_attn_scalar);
}

void refuse_unsupported(const Node& config) {
  const auto refuse = [&](bool found, const char* key, const char* expected) {
    require(!found, "{}: {}: expected {}, found another value; this is not supported", config.origin(), key, expected);
  };
  const Node* activation = config.find("hidden_activation");
  refuse(activation != nullptr && activation->as_string() != kActivation, "hidden_activation", kActivation);
  refuse(bool_or(config, "use_bidirectional_attention", false), "use_bidirectional_attention", "false");
  // transformers 5.23 reads the first and does not use it.
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    refuse(optional_double(config, key).has_value(), key, "null");
  }
}

struct Family {
  static constexpr const char* kModelType = "gemma3_text";
  static constexpr const char* kArchitecture = "Gemma3";
  using Layer = Gemma3Layer;
  static constexpr descriptor::DecoderForm kForm{.attention_norms = 2, .ffn_norms = 2, .qk_norm = true};
  static constexpr nn::NormWeight kNormWeight = nn::NormWeight::zero_centered;
  static constexpr int64_t kBosToken = 2, kEosToken = 1, kPadToken = 0;
  static constexpr std::array kRequiredKeys{"head_dim", "num_key_value_heads"};
  static constexpr std::array kOwnKeys{"hidden_act", "layer_types", "rope_parameters"};

  static double embedding_factor(const DecoderConfig& shape) {
    return std::sqrt(static_cast<double>(shape.hidden_size));
  }

  static void read(const Node& config, DecoderConfig& shape) {
    refuse_unsupported(config);
    const int64_t scalar = int_or(config, "query_pre_attn_scalar", 256);
    const int64_t interval = int_or(config, "sliding_window_pattern", 6);
    require_size(config.origin() + ": ", "query_pre_attn_scalar", scalar);
    require_size(config.origin() + ": ", "sliding_window_pattern", interval, kMostLayers);
    shape.attention_scale = scale_of(static_cast<double>(scalar));
    shape.pattern.sliding_window =
        config.find("sliding_window") == nullptr ? 4096 : optional_int(config, "sliding_window");
    shape.pattern.sliding = read_layer_types(config, shape.num_hidden_layers).value_or(all_but_every(interval));
    read_layer_ropes(config, {.theta = kFullTheta}, {.theta = kSlidingTheta}, kLocalTheta, shape);
    shape.tie_word_embeddings = bool_or(config, "tie_word_embeddings", true);
  }

  static void write(const DecoderConfig& shape, Node& node) {
    const double scale = shape.attention_scale.value_or(scale_of(256));
    node.erase("hidden_act");
    node.set("hidden_activation", Node(kActivation));
    node.set("query_pre_attn_scalar", Node(static_cast<int64_t>(std::llround(1 / (scale * scale)))));
    node.set("attn_logit_softcapping", Node());
    node.set("final_logit_softcapping", Node());
    write_layer_types(shape, node);
    write_layer_ropes(shape, node);
    node.set(kLocalTheta, Node(shape.sliding_rope.value_or(Rope{.theta = kSlidingTheta}).theta));
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, head_dim, intermediate_size, window;
  double query_pre_attn_scalar;
  int64_t vocab_size = 262208;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = size.vocab_size,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = size.head_dim,
      .max_position_embeddings = 131072,
      .rms_norm_eps = 1e-6,
      .rope_theta = kFullTheta,
      .rope_scaling = nn::LinearRopeScaling{.factor = 8},
      .tie_word_embeddings = true,
      .attention_scale = scale_of(size.query_pre_attn_scalar),
      .pattern = {.sliding_window = size.window, .sliding = all_but_every(6)},
      .sliding_rope = Rope{.theta = kSlidingTheta}};
}

// The sizes that were trained on shorter sequences.
DecoderConfig short_published(const Size& size) {
  DecoderConfig config = published(size);
  config.max_position_embeddings = 32768;
  config.rope_scaling = nn::NoRopeScaling{};
  return config;
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 8, 16, 8, 16, 768, 9, 24, 2048});
  config.pattern.sliding = {true, false};
  return config;
}
}  // namespace

descriptor::ModelFamily gemma3_family() {
  return make_decoder_family<Family>(
      "gemma3",
      {
          {"debugmodel", debug_model()},
          {"270M", short_published({640, 18, 4, 1, 256, 2048, 512, 256, 262144})},
          {"1B", short_published({1152, 26, 4, 1, 256, 6912, 512, 256, 262144})},
          {"4B", published({2560, 34, 8, 4, 256, 10240, 1024, 256})},
          {"12B", published({3840, 48, 16, 8, 256, 15360, 1024, 256})},
          {"27B", published({5376, 62, 32, 16, 128, 21504, 1024, 168})},
      });
}

LEHR_DEFINE_DECODER_FAMILY(Gemma3, gemma3)

}  // namespace lehr::model

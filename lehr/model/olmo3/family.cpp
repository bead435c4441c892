#include "lehr/model/olmo3/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/layer_keys.h"

namespace lehr::model {

LEHR_DEFINE_DECODER_FAMILY(Olmo3, olmo3)

namespace {
constexpr double kTheta = 500000;

struct Family {
  static constexpr const char* kModelType = "olmo3";
  static constexpr const char* kArchitecture = "Olmo3";
  using Layer = Olmo3Layer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .qk_norm_width = nn::QKNormWidth::full};
  static constexpr int64_t kEosToken = 50279, kPadToken = 1;
  static constexpr double kNormEps = 1e-5;
  static constexpr std::array kOwnKeys{"layer_types", "rope_parameters"};

  // Only full layers have rope_scaling.
  static void read(const Node& config, DecoderConfig& shape) {
    shape.pattern.sliding_window =
        config.find("sliding_window") == nullptr ? 4096 : optional_int(config, "sliding_window");
    shape.pattern.sliding = read_layer_types(config, shape.num_hidden_layers).value_or(all_but_every(4));
    const Node* tables = config.find("rope_parameters");
    // transformers 4 gives it to all layers, transformers 5 to full layers only.
    require(
        (tables != nullptr && !tables->is_null()) || double_or(config, "rope_theta", kTheta) == kTheta,
        "{}: rope_theta: expected {}, or rope_parameters with a table for each kind of layer, found {}",
        config.origin(),
        kTheta,
        double_or(config, "rope_theta", kTheta));
    read_layer_ropes(config, {.theta = kTheta}, {.theta = kTheta}, nullptr, shape);
  }

  static void write(const DecoderConfig& shape, Node& node) {
    write_layer_types(shape, node);
    write_layer_ropes(shape, node);
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 100278,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = size.hidden_size / size.heads,
      .max_position_embeddings = 65536,
      .rms_norm_eps = 1e-6,
      .rope_theta = kTheta,
      .rope_scaling = nn::YarnRopeScaling{.factor = 8, .original_max_position_embeddings = 8192},
      .pattern = {.sliding_window = 4096, .sliding = all_but_every(4)},
      .sliding_rope = Rope{.theta = kTheta}};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 8, 16, 8, 768});
  config.vocab_size = 2048;
  config.pattern = {.sliding_window = 9, .sliding = {true, false}};
  return config;
}
}  // namespace

descriptor::ModelFamily olmo3_family() {
  return make_decoder_family<Family>(
      "olmo3",
      {
          {"debugmodel", debug_model()},
          {"7B", published({4096, 32, 32, 32, 11008})},
          {"32B", published({5120, 64, 40, 8, 27648})},
      });
}

}  // namespace lehr::model

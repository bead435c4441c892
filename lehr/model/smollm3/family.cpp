#include "lehr/model/smollm3/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/layer_keys.h"
#include "lehr/model/rope_config.h"

namespace lehr::model {

namespace {
// The layers with rotary positions: those with a 1 in no_rope_layers, or all but each no_rope_layer_interval-th.
std::vector<bool> read_rotary(const Node& config, int64_t layers) {
  const Node* list = config.find("no_rope_layers");
  if (list == nullptr || list->is_null()) {
    const int64_t interval = int_or(config, "no_rope_layer_interval", 4);
    require_size(config.origin() + ": ", "no_rope_layer_interval", interval, kMostLayers);
    return all_but_every(interval);
  }
  require(
      static_cast<int64_t>(list->size()) >= layers,
      "{}: no_rope_layers: expected one per layer ({}, num_hidden_layers), found {}",
      config.origin(),
      layers,
      list->size());
  std::vector<bool> rotary;
  for (int64_t layer = 0; layer < layers; ++layer) {
    rotary.push_back(list->at(static_cast<size_t>(layer)).as_int() != 0);
  }
  return rotary;
}

struct Family {
  static constexpr const char* kModelType = "smollm3";
  static constexpr const char* kArchitecture = "SmolLM3";
  using Layer = SmolLM3Layer;
  static constexpr descriptor::DecoderForm kForm{};
  static constexpr int64_t kBosToken = 128000, kEosToken = 128001, kPadToken = 128004;
  static constexpr std::array kRequiredKeys{"num_key_value_heads"};
  static constexpr std::array kNullableKeys{"num_key_value_heads"};
  static constexpr std::array kOwnKeys{"use_sliding_window", "layer_types"};

  static void read(const Node& config, DecoderConfig& shape) {
    LayerPattern& pattern = shape.pattern;
    pattern.rotary = read_rotary(config, shape.num_hidden_layers);
    const auto types = read_layer_types(config, shape.num_hidden_layers);
    if (bool_or(config, "use_sliding_window", false)) {
      pattern.sliding_window = optional_int(config, "sliding_window");
    }
    if (types) {
      pattern.sliding = *types;
    } else if (pattern.sliding_window) {
      pattern.sliding = pattern.rotary;
      pattern.sliding.flip();
    }
    shape.tie_word_embeddings = bool_or(config, "tie_word_embeddings", true);
    shape.rope_theta = read_rope_theta(config, 2e6);
  }

  static void write(const DecoderConfig& shape, Node& node) {
    Node rotary = Node::make_list();
    for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
      rotary.push_back(Node(int64_t{shape.pattern.rotates(layer)}));
    }
    node.set("no_rope_layers", rotary);
    write_layer_types(shape, node);
    node.set("use_sliding_window", Node(shape.pattern.sliding_window.has_value()));
  }
};

DecoderConfig published() {
  return {
      .vocab_size = 128256,
      .hidden_size = 2048,
      .intermediate_size = 11008,
      .num_hidden_layers = 36,
      .num_attention_heads = 16,
      .num_key_value_heads = 4,
      .head_dim = 128,
      .max_position_embeddings = 65536,
      .rms_norm_eps = 1e-6,
      .rope_theta = 5e6,
      .tie_word_embeddings = true,
      .pattern = {.rotary = all_but_every(4)}};
}

// Every second layer has no positions, and a window instead.
DecoderConfig debug_model() {
  DecoderConfig config = published();
  config.vocab_size = 2048;
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_hidden_layers = 8;
  config.num_key_value_heads = 8;
  config.head_dim = 16;
  config.pattern = {.sliding_window = 9, .sliding = {false, true}, .rotary = {true, false}};
  return config;
}
}  // namespace

descriptor::ModelFamily smollm3_family() {
  return make_decoder_family<Family>("smollm3", {{"debugmodel", debug_model()}, {"3B", published()}});
}

LEHR_DEFINE_DECODER_FAMILY(SmolLM3, smollm3)

}  // namespace lehr::model

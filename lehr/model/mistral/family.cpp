#include "lehr/model/mistral/family.h"

#include <array>

#include "lehr/model/config_values.h"
#include "lehr/model/define_decoder_family.h"

namespace lehr::model {

LEHR_DEFINE_DECODER_FAMILY(Mistral, mistral)

namespace {
struct Family {
  static constexpr const char* kModelType = "mistral";
  static constexpr const char* kArchitecture = "Mistral";
  using Layer = MistralLayer;
  static constexpr descriptor::DecoderForm kForm{};
  static constexpr int64_t kBosToken = 1, kEosToken = 2;
  static constexpr std::array kRequiredKeys{"num_key_value_heads"};
  // transformers' class reads none of these.
  static constexpr std::array kOwnKeys{"attention_bias", "mlp_bias", "use_sliding_window", "layer_types"};

  static void read(const Node& config, DecoderConfig& shape) {
    const bool absent = config.find("sliding_window") == nullptr;
    shape.pattern = with_window(absent ? 4096 : optional_int(config, "sliding_window"));
  }

  static void write(const DecoderConfig& shape, Node& node) {
    node.set("sliding_window", number_or_null(shape.pattern.window(0)));
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size, head_dim, vocab_size, max_position_embeddings;
  double rope_theta;
  std::optional<int64_t> window = {};
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
      .max_position_embeddings = size.max_position_embeddings,
      .rms_norm_eps = 1e-5,
      .rope_theta = size.rope_theta,
      .pattern = with_window(size.window)};
}
}  // namespace

descriptor::ModelFamily mistral_family() {
  return make_decoder_family<Family>(
      "mistral",
      {
          {"debugmodel", published({256, 6, 16, 8, 768, 16, 2048, 4096, 1e4, 9})},
          {"7B-v0.1", published({4096, 32, 32, 8, 14336, 128, 32000, 32768, 1e4, 4096})},
          {"7B-v0.3", published({4096, 32, 32, 8, 14336, 128, 32768, 32768, 1e6})},
          {"Nemo-12B", published({5120, 40, 32, 8, 14336, 128, 131072, 131072, 1e6})},
          {"Small-24B", published({5120, 40, 32, 8, 32768, 128, 131072, 32768, 1e8})},
      });
}

}  // namespace lehr::model

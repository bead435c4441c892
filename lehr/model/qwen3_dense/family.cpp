#include "lehr/model/qwen3_dense/family.h"

#include <array>

#include "lehr/model/define_decoder_family.h"
#include "lehr/model/layer_keys.h"

namespace lehr::model {

template class DecoderImpl<Qwen3DenseLayer, Qwen3DenseLayerParameters>;
LEHR_DEFINE_DECODER_FAMILY(Qwen3Dense, qwen3_dense)

namespace {
struct Family {
  static constexpr const char* kModelType = "qwen3";
  static constexpr const char* kArchitecture = "Qwen3";
  using Layer = Qwen3DenseLayer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true};
  static constexpr std::array kRequiredKeys{"head_dim", "num_key_value_heads"};
  static constexpr std::array kNullableKeys{"num_key_value_heads"};
  static constexpr std::array kOwnKeys{"use_sliding_window", "layer_types"};

  static void read(const Node& config, DecoderConfig& shape) { read_qwen_windows(config, shape); }
  static void write(const DecoderConfig& shape, Node& node) { write_qwen_windows(shape, node); }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size;
  bool tied;
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
      .tie_word_embeddings = size.tied};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 8, 16, 8, 3072, true});
  config.vocab_size = 2048;
  config.max_position_embeddings = 4096;
  return config;
}
}  // namespace

descriptor::ModelFamily qwen3_dense_family() {
  return make_decoder_family<Family>(
      "qwen3",
      {
          {"debugmodel", debug_model()},
          {"0.6B", published({1024, 28, 16, 8, 3072, true})},
          {"1.7B", published({2048, 28, 16, 8, 6144, true})},
          {"4B", published({2560, 36, 32, 8, 9728, true})},
          {"8B", published({4096, 36, 32, 8, 12288, false})},
          {"14B", published({5120, 40, 40, 8, 17408, false})},
          {"32B", published({5120, 64, 64, 8, 25600, false})},
      });
}

}  // namespace lehr::model

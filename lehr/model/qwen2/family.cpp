#include "lehr/model/qwen2/family.h"

#include <array>

#include "lehr/model/define_decoder_family.h"
#include "lehr/model/layer_keys.h"

namespace lehr::model {

LEHR_DEFINE_DECODER_FAMILY(Qwen2, qwen2)

namespace {
struct Family {
  static constexpr const char* kModelType = "qwen2";
  static constexpr const char* kArchitecture = "Qwen2";
  using Layer = Qwen2Layer;
  static constexpr descriptor::DecoderForm kForm{.qkv_bias = true};
  static constexpr std::array kRequiredKeys{"num_key_value_heads"};
  static constexpr std::array kNullableKeys{"num_key_value_heads"};
  // The layer has its biases whatever attention_bias says.
  static constexpr std::array kOwnKeys{"attention_bias", "mlp_bias", "use_sliding_window", "layer_types"};

  static void read(const Node& config, DecoderConfig& shape) {
    shape.qkv_bias = true;
    read_qwen_windows(config, shape);
  }

  static void write(const DecoderConfig& shape, Node& node) { write_qwen_windows(shape, node); }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size;
  bool tied;
  int64_t vocab_size, max_position_embeddings;
  double rms_norm_eps;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = size.vocab_size,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = size.hidden_size / size.heads,
      .max_position_embeddings = size.max_position_embeddings,
      .rms_norm_eps = size.rms_norm_eps,
      .rope_theta = 1e6,
      .tie_word_embeddings = size.tied,
      .qkv_bias = true};
}

// Its window cuts even short sequences.
DecoderConfig debug_model() {
  DecoderConfig config = published({256, 8, 16, 8, 768, true, 2048, 4096, 1e-6});
  config.pattern = {.sliding_window = 9, .sliding = {false, true}};
  return config;
}
}  // namespace

descriptor::ModelFamily qwen2_family() {
  return make_decoder_family<Family>(
      "qwen2",
      {
          {"debugmodel", debug_model()},
          {"0.5B", published({896, 24, 14, 2, 4864, true, 151936, 32768, 1e-6})},
          {"1.5B", published({1536, 28, 12, 2, 8960, true, 151936, 131072, 1e-6})},
          {"3B", published({2048, 36, 16, 2, 11008, true, 151936, 32768, 1e-6})},
          {"7B", published({3584, 28, 28, 4, 18944, false, 152064, 131072, 1e-6})},
          {"14B", published({5120, 48, 40, 8, 13824, false, 152064, 131072, 1e-5})},
          {"32B", published({5120, 64, 40, 8, 27648, false, 152064, 131072, 1e-5})},
          {"72B", published({8192, 80, 64, 8, 29568, false, 152064, 131072, 1e-5})},
      });
}

}  // namespace lehr::model

#include "lehr/model/olmo2/family.h"

#include "lehr/model/define_decoder_family.h"

namespace lehr::model {

template class DecoderImpl<Olmo2Layer, Olmo2LayerParameters>;
LEHR_DEFINE_DECODER_FAMILY(Olmo2, olmo2)

namespace {
struct Family {
  static constexpr const char* kModelType = "olmo2";
  static constexpr const char* kArchitecture = "Olmo2";
  using Layer = Olmo2Layer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .qk_norm_width = nn::QKNormWidth::full};
  static constexpr int64_t kEosToken = 50279, kPadToken = 1;  // of transformers' Olmo2Config,
  static constexpr double kNormEps = 1e-5;                    // whose eps is not DecoderConfig's either
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size, vocab_size = 100352;
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
      .max_position_embeddings = 4096,
      .rms_norm_eps = 1e-6,
      .rope_theta = 500000};
}
}  // namespace

descriptor::ModelFamily olmo2_family() {
  return make_decoder_family<Family>(
      "olmo2",
      {
          {"debugmodel", published({256, 8, 16, 8, 768, 2048})},
          {"1B", published({2048, 16, 16, 16, 8192})},
          {"7B", published({4096, 32, 32, 32, 11008})},
          {"13B", published({5120, 40, 40, 40, 13824})},
          {"32B", published({5120, 64, 40, 8, 27648})},
      });
}

}  // namespace lehr::model

#include "lehr/model/llama3/family.h"

#include "lehr/model/define_decoder_family.h"

namespace lehr::model {

template class DecoderImpl<Llama3Layer, Llama3LayerParameters>;
LEHR_DEFINE_DECODER_FAMILY(Llama3, llama3)

namespace {
struct Family {
  static constexpr const char* kModelType = "llama";
  static constexpr const char* kArchitecture = "Llama";
  using Layer = Llama3Layer;
  static constexpr descriptor::DecoderForm kForm{};
  static constexpr int64_t kBosToken = 1, kEosToken = 2;  // of transformers' LlamaConfig
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, intermediate_size;
  bool tied;
  double rope_factor = 8;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 128256,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = size.layers,
      .num_attention_heads = size.heads,
      .num_key_value_heads = size.key_value_heads,
      .head_dim = size.hidden_size / size.heads,
      .max_position_embeddings = 131072,
      .rms_norm_eps = 1e-5,
      .rope_theta = 500000,
      .rope_scaling = nn::Llama3RopeScaling{.factor = size.rope_factor},
      .tie_word_embeddings = size.tied};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 6, 16, 16, 768, false});
  config.vocab_size = 2048;
  return config;
}
}  // namespace

descriptor::ModelFamily llama3_family() {
  return make_decoder_family<Family>(
      "llama3",
      {
          {"debugmodel", debug_model()},
          {"1B", published({2048, 16, 32, 8, 8192, true, 32})},
          {"3B", published({3072, 28, 24, 8, 8192, true, 32})},
          {"8B", published({4096, 32, 32, 8, 14336, false})},
          {"70B", published({8192, 80, 64, 8, 28672, false})},
          {"405B", published({16384, 126, 128, 8, 53248, false})},
      },
      {"nemotron-nas"});
}

}  // namespace lehr::model

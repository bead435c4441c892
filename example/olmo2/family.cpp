#include "family.h"

#include "lehr/model/define_decoder_family.h"

template class lehr::model::DecoderImpl<olmo2::Olmo2Layer, olmo2::Olmo2LayerParameters>;

namespace olmo2 {

LEHR_DEFINE_DECODER_FAMILY(Olmo2, olmo2)

struct Family {
  static constexpr const char* kModelType = "olmo2";
  static constexpr const char* kArchitecture = "Olmo2";
  using Layer = Olmo2Layer;
  static constexpr descriptor::DecoderForm kForm{.qk_norm = true, .qk_norm_width = nn::QKNormWidth::full};
  // Of transformers' Olmo2Config, whose rms_norm_eps is not DecoderConfig's either.
  static constexpr int64_t kEosToken = 50279;
  static constexpr double kNormEps = 1e-5;
};

descriptor::ModelFamily olmo2_family() {
  const model::DecoderConfig tiny{
      .vocab_size = 257,
      .hidden_size = 64,
      .intermediate_size = 160,
      .num_hidden_layers = 4,
      .num_attention_heads = 4,
      .num_key_value_heads = 2,
      .head_dim = 16,
      .max_position_embeddings = 512};
  return model::make_decoder_family<Family>("olmo2", {{"tiny", tiny}});
}

}  // namespace olmo2

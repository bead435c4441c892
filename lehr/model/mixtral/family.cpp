#include "lehr/model/mixtral/family.h"

#include <array>

#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/mixtral/state_map.h"
#include "lehr/model/rope_config.h"
#include "lehr/model/supported_values.h"

namespace lehr::model {

namespace {
struct Family {
  static constexpr const char* kModelType = "mixtral";
  static constexpr const char* kArchitecture = "Mixtral";
  using Layer = MixtralLayer;
  static constexpr descriptor::DecoderForm kForm{};
  static constexpr int64_t kBosToken = 1, kEosToken = 2;
  static constexpr double kNormEps = 1e-5;
  static constexpr std::array kRequiredKeys{"num_experts_per_tok", "num_key_value_heads"};
  // transformers' class reads none of these.
  static constexpr std::array kOwnKeys{"attention_bias", "mlp_bias", "use_sliding_window", "layer_types"};

  static MixtralLayerParameters layer_parameters(const DecoderConfig& config) {
    auto params = mixture_parameters(config);
    check_uniform_experts(value_of(config.moe, "experts"), kModelType);
    params.qk_norm = false;
    return params;
  }

  static void read(const Node& config, DecoderConfig& shape) {
    require_supported(config, "router_jitter_noise", 0.0);
    require_one_expert_width(config);
    shape.pattern = with_window(optional_int(config, "sliding_window"));
    shape.rope_theta = read_rope_theta(config, 1e6);
    if (shape.moe) {  // else layer_parameters names the missing key
      set_uniform_experts(*shape.moe);
    }
  }

  static void write(const DecoderConfig& shape, Node& node) {
    node.set("sliding_window", number_or_null(shape.pattern.window(0)));
    write_uniform_experts(value_of(shape.moe, "experts"), !shape.block_configs.empty(), node);
    node.set("router_jitter_noise", Node(0.0));
  }
};

class MixtralArgs : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    const state::StateMap map = DecoderArgs<Family>::state_map(layout);
    const bool fused = layout == descriptor::ExpertLayout::fused;  // as transformers 5 names its modules
    return fused ? map : with_block_sparse_moe_names(map);
  }
};

struct Size {
  int64_t hidden_size, layers, heads, key_value_heads, head_dim, intermediate_size, max_position_embeddings;
  double router_aux_loss_coef;
  int64_t vocab_size = 32000;
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
      .rope_theta = 1e6,
      .moe =
          MoEConfig{
              .num_experts = 8,
              .num_experts_per_tok = 2,
              .moe_intermediate_size = size.intermediate_size,
              .router_aux_loss_coef = size.router_aux_loss_coef,
              .uses_intermediate_size = true},
      .pattern = with_window(size.window)};
}
}  // namespace

descriptor::ModelFamily mixtral_family() {
  return make_decoder_family<Family, MixtralArgs>(
      "mixtral",
      {
          {"debugmodel", published({256, 6, 16, 8, 16, 384, 4096, 0.02, 2048, 9})},
          {"8x7B", published({4096, 32, 32, 8, 128, 14336, 32768, 0.02})},
          {"8x22B", published({6144, 56, 48, 8, 128, 16384, 65536, 0.001})},
      });
}

LEHR_DEFINE_DECODER_FAMILY(Mixtral, mixtral)

}  // namespace lehr::model

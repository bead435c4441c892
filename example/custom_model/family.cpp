#include "family.h"

#include "layer.h"
#include "lehr/model/define_decoder_family.h"

namespace parallel_decoder {

namespace {
struct Family {
  static constexpr const char* kModelType = "parallel_decoder";
  static constexpr const char* kArchitecture = "ParallelDecoder";
  using Layer = ParallelLayer;

  static LayerParameters layer_parameters(const model::DecoderConfig& config) {
    return {
        .hidden_size = config.hidden_size,
        .intermediate_size = config.intermediate_size,
        .num_attention_heads = config.num_attention_heads,
        .num_key_value_heads = config.num_key_value_heads,
        .head_dim = config.head_dim,
        .rms_norm_eps = config.rms_norm_eps,
        .initializer_range = config.initializer_range};
  }
};

// A stored tensor of a layer, and the parameters whose rows it concatenates.
struct Stored {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<int64_t> rows = {};
};

std::vector<Stored> stored_tensors_of_a_layer(const model::DecoderConfig& config) {
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  return {
      {"norm", {"input_layernorm"}},
      {"attn.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {queries, keys, keys}},
      {"attn.out", {"self_attn.o_proj"}},
      {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}, {inner, inner}},
      {"mlp.down", {"mlp.down_proj"}},
  };
}

class Args : public model::DecoderArgs<Family> {
 public:
  using DecoderArgs::DecoderArgs;

  /// Maps the stored names to Hugging Face's usual ones, and those to parameters as for every decoder.
  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    // With an embedding head, the backbone is stored without the prefix "model.".
    const std::string root = head() == descriptor::Head::embedding ? "layers." : "model.layers.";
    const auto stored_tensors = stored_tensors_of_a_layer(config());
    std::vector<state::StateMap> maps;
    for (int64_t i = 0; i < config().num_hidden_layers; ++i) {
      auto full = [&](const std::string& name) { return root + std::to_string(i) + "." + name + ".weight"; };
      for (const Stored& stored : stored_tensors) {
        std::vector<std::string> names;
        for (const std::string& parameter : stored.parameters) {
          names.push_back(full(parameter));
        }
        maps.push_back(
            names.size() == 1 ? state::rename(full(stored.name), names.front())
                              : state::split(full(stored.name), names, 0, stored.rows));
      }
    }
    return state::sequential({state::parallel(maps), DecoderArgs::state_map(layout)});
  }
};

model::DecoderConfig small() {
  return {
      .vocab_size = 257,
      .hidden_size = 64,
      .intermediate_size = 128,
      .num_hidden_layers = 2,
      .num_attention_heads = 4,
      .num_key_value_heads = 2,
      .head_dim = 16,
      .max_position_embeddings = 512,
      .initializer_range = 0.05};
}
}  // namespace

descriptor::ModelFamily family() {
  return model::make_decoder_family<Family, Args>("parallel", {{"small", small()}});
}

}  // namespace parallel_decoder

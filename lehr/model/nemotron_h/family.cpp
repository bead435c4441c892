#include "lehr/model/nemotron_h/family.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/model/config_values.h"
#include "lehr/model/deepseek_moe_config.h"
#include "lehr/model/define_decoder_family.h"
#include "lehr/model/nemotron_h/experts_config.h"
#include "lehr/model/nemotron_h/state_map.h"

namespace lehr::model {

template class DecoderImpl<NemotronHLayer, NemotronHLayerParameters>;

namespace {
const Mamba2Config& mamba_of(const DecoderConfig& config) {
  return value_of(config.mamba2, "Mamba-2");
}

struct Family {
  static constexpr const char* kModelType = "nemotron_h";
  static constexpr const char* kArchitecture = "NemotronH";
  using Layer = NemotronHLayer;
  static constexpr descriptor::DecoderForm kForm{.ffn_matrices = 2};
  static constexpr int64_t kBosToken = 1, kEosToken = 2;
  // transformers' class does not read the first three.
  static constexpr std::array kOwnKeys{
      "hidden_act", "partial_rotary_factor", "use_sliding_window", "head_dim", "num_experts_per_tok"};

  static NemotronHLayerParameters layer_parameters(const DecoderConfig& config) {
    std::optional<nn::MoEParameters> experts;
    if (config.moe) {
      check_nemotron_h_experts(*config.moe);
      experts = nemotron_h_experts(*config.moe, config.hidden_size, nn::Init::normal(config.initializer_range));
    }
    return {
        .hidden_size = config.hidden_size,
        .intermediate_size = config.intermediate_size,
        .num_attention_heads = config.num_attention_heads,
        .num_key_value_heads = config.num_key_value_heads,
        .rms_norm_eps = config.rms_norm_eps,
        .head_dim = config.head_dim,
        .initializer_range = config.initializer_range,
        .mamba = mamba_of(config),
        .experts = experts};
  }

  static void read(const Node& config, DecoderConfig& shape) {
    const auto refuse = [&](const char* key, const std::string& expected, const std::string& found) {
      require(
          found == expected,
          "{}: {}: expected {}, found {}; this is not supported",
          config.origin(),
          key,
          expected,
          found);
    };
    refuse("use_bias", "false", bool_or(config, "use_bias", false) ? "true" : "false");
    for (const auto& [key, expected] : {std::pair("mamba_hidden_act", "silu"), std::pair("mlp_hidden_act", "relu2")}) {
      const Node* found = config.find(key);
      refuse(key, expected, found == nullptr || found->is_null() ? expected : found->as_string());
    }
    shape.head_dim = int_or(config, "head_dim", 128);
    refuse(  // the key of NVIDIA's class, which transformers' does not read
        "attention_head_dim",
        std::to_string(shape.head_dim),
        std::to_string(int_or(config, "attention_head_dim", shape.head_dim)));
    shape.num_key_value_heads = int_or(config, "num_key_value_heads", 8);
    shape.rms_norm_eps = double_or(config, "layer_norm_epsilon", 1e-5);
    shape.pad_token_id = config.find("pad_token_id") == nullptr ? 0 : shape.pad_token_id;
    shape.mamba2 = Mamba2Config::from_hf(config, shape.num_hidden_layers);
    if (shape.mamba2->has_experts()) {
      shape.moe = read_nemotron_h_experts(config);
    }
  }

  static void write(const DecoderConfig& shape, Node& node) {
    for (const char* key : {"hidden_act", "rope_scaling", "rope_theta"}) {
      node.erase(key);
    }
    if (shape.moe) {
      write_nemotron_h_experts(*shape.moe, node);
    }
    mamba_of(shape).to_hf(node, shape.num_hidden_layers);
    node.set("layer_norm_epsilon", Node(shape.rms_norm_eps));
    node.set("mlp_hidden_act", Node("relu2"));
    node.set("pad_token_id", shape.pad_token_id ? Node(*shape.pad_token_id) : Node());
  }
};

/// Published checkpoints have other names and another order of rows.
class NemotronHArgs : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  void check(const std::string& where) const override {
    DecoderArgs<Family>::check(where);
    require(
        !config().tie_word_embeddings,
        "{}tie_word_embeddings: expected false, found true: in transformers, models of type nemotron_h have a head of "
        "their own in any case",
        where);
  }

  std::string backbone_prefix() const override { return kBackbonePrefix; }

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    return with_nemotron_h_names(DecoderArgs<Family>::state_map(layout), mamba_of(config()));
  }
};

/// Weights are grouped by the names of modules: stored ones do not say which sub-block a norm belongs to.
class NemotronHDescriptor : public DecoderDescriptor<NemotronHArgs> {
 public:
  using DecoderDescriptor<NemotronHArgs>::DecoderDescriptor;

  descriptor::WeightGroups get_weight_groups(
      const std::vector<std::string>& layer_names, int64_t num_hidden_layers) const override {
    const auto stored = nemotron_h_module_names(layer_names);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : stored) {
      names.push_back(name);
    }
    auto groups = DecoderDescriptor<NemotronHArgs>::get_weight_groups(names, num_hidden_layers);
    const std::map<std::string, std::string> in_checkpoint(stored.begin(), stored.end());
    for (auto& [group, members] : groups) {
      for (std::string& name : members) {
        name = in_checkpoint.at(name);
      }
    }
    return groups;
  }

 protected:
  std::vector<std::string> stored_names(const DecoderConfig& shape, descriptor::ExpertLayout layout) const override {
    return DecoderArgs<NemotronHArgs::Family>(shape).state_map(layout).input_names();
  }
};

struct Size {
  int64_t hidden_size, intermediate_size, heads, mamba_heads, mamba_head_dim, state_size, max_position_embeddings;
  std::string pattern;
};

DecoderConfig published(const Size& size) {
  return {
      .vocab_size = 131072,
      .hidden_size = size.hidden_size,
      .intermediate_size = size.intermediate_size,
      .num_hidden_layers = static_cast<int64_t>(size.pattern.size()),
      .num_attention_heads = size.heads,
      .num_key_value_heads = 8,
      .head_dim = 128,
      .max_position_embeddings = size.max_position_embeddings,
      .rms_norm_eps = 1e-5,
      .bos_token_id = 1,
      .eos_token_id = {2},
      .pad_token_id = 0,
      .mamba2 = Mamba2Config{
          .mamba_num_heads = size.mamba_heads,
          .mamba_head_dim = size.mamba_head_dim,
          .ssm_state_size = size.state_size,
          .pattern = size.pattern}};
}

DecoderConfig debug_model() {
  DecoderConfig config = published({256, 768, 8, 8, 32, 16, 4096, "M*-M-M*-"});
  config.vocab_size = 2048;
  config.num_key_value_heads = 4;
  config.head_dim = 32;
  config.bos_token_id = {};
  config.eos_token_id = {};
  config.pad_token_id = {};
  config.mamba2->n_groups = 4;
  return config;
}

// Nemotron 3 Nano.
DecoderConfig nano_30b() {
  DecoderConfig config =
      published({2688, 1856, 32, 64, 64, 128, 262144, "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"});
  config.num_key_value_heads = 2;
  config.moe = MoEConfig{
      .num_experts = 128,
      .num_experts_per_tok = 6,
      .moe_intermediate_size = 1856,
      .expert_bias = true,
      .shared_expert_intermediate_size = 3712,
      .router = deepseek_router(1, 1, 2.5)};
  return config;
}

// Nemotron 3 Super.
DecoderConfig super_120b() {
  DecoderConfig config = published(
      {4096,
       2688,
       32,
       128,
       64,
       128,
       262144,
       "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"});
  config.num_key_value_heads = 2;
  config.moe = MoEConfig{
      .num_experts = 512,
      .num_experts_per_tok = 22,
      .moe_intermediate_size = 2688,
      .expert_bias = true,
      .shared_expert_intermediate_size = 5376,
      .moe_latent_size = 1024,
      .router = deepseek_router(1, 1, 5)};
  return config;
}

DecoderConfig debug_model_with_experts() {
  DecoderConfig config = debug_model();
  config.mamba2->pattern = "M*E-MEM*";
  config.num_hidden_layers = 8;
  config.moe = MoEConfig{
      .num_experts = 32,
      .num_experts_per_tok = 4,
      .moe_intermediate_size = 192,
      .expert_bias = true,
      .shared_expert_intermediate_size = 320,
      .router = deepseek_router(4, 2, 2.5)};
  return config;
}
}  // namespace

descriptor::ModelFamily nemotron_h_family() {
  const std::string of_8b = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
  const std::string of_47b =
      "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-";
  std::string of_56b = "M-M-M-M*-";
  for (int64_t i = 0; i < 9; ++i) {
    of_56b += "M-M-M-M-M*-";
  }
  of_56b += "M-M-M-M-M-";
  const std::string of_nano_9b = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";
  const std::string of_nano_12b = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-";
  auto family = make_decoder_family<Family, NemotronHArgs>(
      "nemotron_h",
      {
          {"debugmodel", debug_model()},
          {"debugmodel_moe", debug_model_with_experts()},
          {"8B", published({4096, 21504, 32, 128, 64, 128, 8192, of_8b})},
          {"47B", published({8192, 30720, 64, 256, 64, 256, 8192, of_47b})},
          {"56B", published({8192, 32768, 64, 256, 64, 256, 8192, of_56b})},
          {"Nano-9B-v2", published({4480, 15680, 40, 128, 80, 128, 131072, of_nano_9b})},
          {"Nano-12B-v2", published({5120, 20480, 40, 128, 80, 128, 131072, of_nano_12b})},
          {"Nano-30B-A3B", nano_30b()},
          {"Super-120B-A12B", super_120b()},
      });
  DecoderConfig all_weights = debug_model_with_experts();
  value_of(all_weights.moe, "experts").moe_latent_size = 64;
  family.descriptor = std::make_shared<NemotronHDescriptor>(all_weights);
  return family;
}

LEHR_DEFINE_DECODER_FAMILY(NemotronH, nemotron_h)

}  // namespace lehr::model

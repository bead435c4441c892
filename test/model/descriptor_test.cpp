// Descriptors of the families: weight groups, module paths, and layers that lose a sub-block.
#include <gmock/gmock.h>

#include <filesystem>

#include "lehr/descriptor/model_descriptor.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "test/base/error_of.h"
#include "test/model/plain_decoder.h"
#include "test/shard/one_device.h"

namespace lehr::model::test {
namespace {

using descriptor::ExpertLayout;
using descriptor::ModelDescriptor;
using shard::test::make_real;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Names = std::vector<std::string>;

std::filesystem::path reference(const std::string& name) {
  return std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference" / name;
}

TEST(Descriptors, AreFoundByNameOrByConfig) {
  const auto families = all_families();
  EXPECT_EQ(&families.descriptor("qwen3"), &families.descriptor_of_hf_folder(reference("qwen3_tied_v4config")));
  EXPECT_EQ(&families.descriptor("qwen3_moe"), &families.descriptor_of_hf_folder(reference("qwen3moe_sparse_step2")));
  EXPECT_EQ(&families.descriptor("llama3"), &families.descriptor_of_hf_folder(reference("llama_rope_llama3")));
  EXPECT_THAT(
      any_error::error_of([&] { families.descriptor("qwen"); }),
      HasSubstr("'qwen' is not known, did you mean 'qwen3'; known: qwen3, qwen3_moe, llama3, olmo2"));
  descriptor::ModelFamilies own;
  auto family = qwen3_dense_family();
  family.descriptor = nullptr;
  own.add(family);
  EXPECT_THAT(own.names(), ::testing::ElementsAre("qwen3"));
  EXPECT_THAT(
      any_error::error_of([&] { own.descriptor("qwen3"); }), HasSubstr("model family 'qwen3': has no descriptor"));
}

// Expected are the groups of puzzletron's llama and qwen3 descriptors; e_score_correction_bias is Lehr's. OLMo 2's
// norms are after its sub-blocks, where the attention's has the name that others give the norm of the feed-forward
// block.
TEST(WeightGroups, EqualTheReference) {
  const auto families = all_families();
  const auto layer = [](const Names& endings) {
    Names names;
    for (const std::string& ending : endings) {
      names.push_back("model.layers.1." + ending);
    }
    return names;
  };
  const Names attention = layer(
      {"input_layernorm.weight",
       "self_attn.q_proj.weight",
       "self_attn.k_proj.weight",
       "self_attn.v_proj.weight",
       "self_attn.o_proj.weight"});
  const Names qk_norm = layer({"self_attn.q_norm.weight", "self_attn.k_norm.weight"});
  const Names biases = layer({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"});
  const Names all_biases =
      layer({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.bias"});
  const Names ffn =
      layer({"post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"});
  const Names experts = layer(
      {"mlp.gate.weight",
       "mlp.gate.e_score_correction_bias",
       "mlp.experts.0.gate_proj.weight",
       "mlp.experts.127.up_proj.weight",
       "mlp.experts.12.down_proj.weight",
       "mlp.experts.gate_up_proj",
       "mlp.experts.down_proj"});
  const Names shared_experts = layer(
      {"mlp.shared_experts.gate_proj.weight",
       "mlp.shared_experts.up_proj.weight",
       "mlp.shared_experts.down_proj.weight"});
  const Names gated_expert = layer(
      {"mlp.shared_expert.gate_proj.weight",
       "mlp.shared_expert.up_proj.weight",
       "mlp.shared_expert.down_proj.weight",
       "mlp.shared_expert_gate.weight"});
  const Names latent_attention = layer(
      {"input_layernorm.weight",
       "self_attn.q_a_proj.weight",
       "self_attn.q_a_layernorm.weight",
       "self_attn.q_b_proj.weight",
       "self_attn.q_proj.weight",
       "self_attn.q_a_proj.bias",
       "self_attn.kv_a_proj_with_mqa.bias",
       "self_attn.o_proj.bias",
       "self_attn.kv_a_proj_with_mqa.weight",
       "self_attn.kv_a_layernorm.weight",
       "self_attn.kv_b_proj.weight",
       "self_attn.o_proj.weight"});
  const Names gated_delta_net = layer(
      {"linear_attn.in_proj_qkvz.weight",
       "linear_attn.in_proj_ba.weight",
       "linear_attn.conv1d.weight",
       "linear_attn.dt_bias",
       "linear_attn.A_log",
       "linear_attn.norm.weight",
       "linear_attn.out_proj.weight"});
  const Names mixtral_experts = layer(
      {"block_sparse_moe.gate.weight",
       "block_sparse_moe.experts.0.w1.weight",
       "block_sparse_moe.experts.7.w2.weight",
       "block_sparse_moe.experts.3.w3.weight",
       "mlp.gate.weight",
       "mlp.experts.gate_up_proj",
       "mlp.experts.down_proj"});
  const Names minimax_bias = layer({"block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"});
  const Names sinks = layer({"self_attn.sinks"});
  const Names gpt_oss_experts = layer(
      {"mlp.router.weight",
       "mlp.router.bias",
       "mlp.experts.gate_up_proj",
       "mlp.experts.gate_up_proj_bias",
       "mlp.experts.down_proj",
       "mlp.experts.down_proj_bias"});
  const Names own_attention = layer(
      {"post_attention_layernorm.weight",
       "self_attn.q_proj.weight",
       "self_attn.k_proj.weight",
       "self_attn.v_proj.weight",
       "self_attn.o_proj.weight"});
  const Names own_ffn = layer(
      {"post_feedforward_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"});
  const auto together = [](Names a, const Names& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::map<std::string, std::pair<Names, Names>> table{
      {"llama3", {together(attention, all_biases), ffn}},
      {"qwen3", {together(together(attention, qk_norm), all_biases), ffn}},
      {"olmo2", {together(own_attention, qk_norm), own_ffn}},
      {"olmo3", {together(own_attention, qk_norm), own_ffn}},
      {"mistral", {attention, ffn}},
      {"smollm3", {together(attention, all_biases), ffn}},
      {"qwen2", {together(attention, biases), ffn}},
      {"gemma3",
       {together(together(attention, qk_norm), layer({"post_attention_layernorm.weight"})),
        together(own_ffn, layer({"pre_feedforward_layernorm.weight"}))}},
      {"mixtral", {attention, together(ffn, mixtral_experts)}},
      {"minimax_m2", {together(attention, qk_norm), together(together(ffn, mixtral_experts), minimax_bias)}},
      {"gpt_oss", {together(together(attention, all_biases), sinks), together(ffn, gpt_oss_experts)}},
      {"deepseek_v3", {latent_attention, together(together(ffn, experts), shared_experts)}},
      {"qwen3_next",
       {together(together(attention, qk_norm), gated_delta_net), together(together(ffn, experts), gated_expert)}},
      {"glm4_moe", {together(together(attention, qk_norm), biases), together(together(ffn, experts), shared_experts)}},
      {"qwen3_moe", {together(together(attention, qk_norm), all_biases), together(ffn, experts)}}};
  for (const auto& [family, halves] : table) {
    Names all{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
    all = together(together(all, halves.second), halves.first);
    EXPECT_THAT(
        families.descriptor(family).get_weight_groups(all, 2),
        UnorderedElementsAre(
            std::pair<const std::string, Names>("embeddings", {"model.embed_tokens.weight"}),
            std::pair<const std::string, Names>("lm_head", {"model.norm.weight", "lm_head.weight"}),
            std::pair<const std::string, Names>("block_1_attention", halves.first),
            std::pair<const std::string, Names>("block_1_ffn", halves.second)))
        << family;
  }
}

TEST(WeightGroups, NameAWeightThatBelongsToNoGroup) {
  const auto families = all_families();
  const auto found = [&](const std::string& family, const Names& names) {
    return any_error::error_of([&] { families.descriptor(family).get_weight_groups(names, 12); });
  };
  for (const char* wrong :
       {"model.layers.12.mlp.up_proj.weight",  // there are 12 layers
        "model.layers.1x.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.weights",
        "model.layers.1.mlp.up_proj.bias",
        "model.layers.1.mlp.experts.3.up_proj.weight",
        "layers.1.mlp.up_proj.weight",
        "model.embed_tokens.token_embedding.default.weight",
        "xlm_head.weight",
        ""}) {
    EXPECT_THAT(
        found("qwen3", {"model.layers.11.mlp.up_proj.weight", wrong, "also.wrong"}),
        HasSubstr(fmt::format("weight {}: belongs to no weight group", wrong)));
  }
  EXPECT_THAT(found("llama3", {"model.layers.1.self_attn.q_norm.weight"}), HasSubstr("belongs to no weight group"));
  EXPECT_THAT(
      found("qwen3_moe", {"model.layers.1.mlp.experts..up_proj.weight"}), HasSubstr("belongs to no weight group"));
  EXPECT_THAT(found("qwen3", {"lm_head.weight", "lm_head.weight"}), HasSubstr("weight lm_head.weight: occurs twice"));
}

// As a search needs it, whose single layers are stages of longer models.
TEST(LayersOfQwen3Next, AreShiftedWithTheirKinds) {
  const auto args = args_of("qwen3_next", {{1, 16}, {2, 16}, {1, 16}, {2, 16}});
  args->shift_layers(1);
  const Node config = args->to_hf_config("float32");
  EXPECT_EQ(config.at("layer_types").at(0).as_string(), "full_attention");
  EXPECT_EQ(config.at("layer_types").at(1).as_string(), "linear_attention");
}

struct Case {
  std::string name, model_type;
  std::vector<LayerShape> layers;
};

class Descriptor : public ::testing::TestWithParam<Case> {
 protected:
  const descriptor::ModelFamily family = family_of(GetParam().model_type);
  const ModelDescriptor& described = *family.descriptor;
  const std::vector<LayerShape>& layers = GetParam().layers;

  std::shared_ptr<nn::Model> build(const std::vector<LayerShape>& of) const {
    return args_of(GetParam().model_type, of)->build({});
  }
  // The module with that path.
  static std::shared_ptr<torch::nn::Module> at(const nn::Model& model, const std::string& path) {
    const auto found = model.named_modules();
    const auto* module = found.find(path);
    return module != nullptr ? *module : nullptr;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Families,
    Descriptor,
    ::testing::Values(
        Case{"Qwen3", "qwen3", kMixed},
        Case{"Llama", "llama", kMixed},
        Case{"Olmo2", "olmo2", kMixed},
        Case{"Qwen2", "qwen2", kMixed},
        Case{"SmolLM3", "smollm3", kMixed},
        Case{"Olmo3", "olmo3", kMixed},
        Case{"Gemma3", "gemma3_text", kMixed},
        Case{"LlamaWithLinear", "llama", kWithLinear},
        Case{"Olmo2WithLinear", "olmo2", kWithLinear},
        Case{"Gemma3WithLinear", "gemma3_text", kWithLinear},
        Case{"Qwen3MoeWithLinear", "qwen3_moe", kMixturesWithLinear},
        Case{"Mixtral", "mixtral", kMixtures},
        Case{"GptOss", "gpt_oss", kOnlyMixtures},
        Case{"Glm4Moe", "glm4_moe", kSharedMixtures},
        Case{"MiniMaxM2", "minimax_m2", kMixtures},
        Case{"DeepseekV3", "deepseek_v3", kLatentMixtures},
        Case{"Qwen3Next", "qwen3_next", kDeltaMixtures},
        Case{"Glm4MoeWithLinear", "glm4_moe", kSharedMixturesWithLinear},
        Case{"Qwen3Moe", "qwen3_moe", kMixtures}),
    [](const auto& one) { return one.param.name; });

// Every tensor of the model is in exactly one group, and a removed sub-block has no group.
TEST_P(Descriptor, GroupsAllWeightsOfItsModels) {
  const auto args = args_of(GetParam().model_type, layers);
  const auto count = static_cast<int64_t>(layers.size());
  for (const ExpertLayout layout : {ExpertLayout::per_expert, ExpertLayout::fused}) {
    const Names names = args->state_map(layout).input_names();
    const auto groups = described.get_weight_groups(names, count);
    size_t grouped = 0;
    for (const auto& [group, members] : groups) {
      grouped += members.size();
    }
    EXPECT_EQ(grouped, names.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_EQ(groups.contains(fmt::format("block_{}_attention", i)), layers[i].kv_heads != 0) << i;
      EXPECT_EQ(groups.contains(fmt::format("block_{}_ffn", i)), layers[i].width != 0) << i;
    }
  }
  EXPECT_EQ(described.layer_name_predicates(count).size(), 2 * layers.size() + 2);
  auto classifier = args_of(GetParam().model_type, layers);
  classifier->set_classification(3, 0);
  const auto groups = described.get_weight_groups(classifier->state_map(ExpertLayout::per_expert).input_names(), count);
  EXPECT_THAT(groups.at("lm_head"), UnorderedElementsAre("model.norm.weight", "score.weight"));
  classifier->set_token_classification(3, 0);
  EXPECT_THAT(
      described.get_weight_groups(classifier->state_map(ExpertLayout::per_expert).input_names(), count).at("lm_head"),
      UnorderedElementsAre("model.norm.weight", "score.weight", "score.bias"));
}

TEST_P(Descriptor, NamesModulesByTheirPaths) {
  const auto model = build(layers);
  for (const std::string& path :
       {described.input_embedding_name(), described.output_embedding_name(), described.final_norm_name()}) {
    EXPECT_NE(at(*model, path), nullptr) << path;
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = at(*model, described.layer_block_name(static_cast<int64_t>(i)));
    ASSERT_NE(layer, nullptr);
    EXPECT_TRUE(described.is_decoder_layer(*layer));
  }
  int64_t decoder_layers = 0;
  for (const auto& module : model->modules()) {
    decoder_layers += described.is_decoder_layer(*module) ? 1 : 0;
  }
  EXPECT_EQ(decoder_layers, static_cast<int64_t>(layers.size()));
}

// A model whose layers lose a sub-block after construction equals the model that was built without it.
TEST_P(Descriptor, RemovesSubblocks) {
  EXPECT_TRUE(described.attn_no_op_supported());
  EXPECT_TRUE(described.mlp_no_op_supported());
  std::vector<LayerShape> full = layers;
  for (LayerShape& layer : full) {
    const auto index = &layer - full.data();
    layer.kv_heads = layer.kv_heads != 0 ? layer.kv_heads : has_kv_heads(GetParam().model_type, index) ? 2 : 1;
    if (layer.width == 0 && GetParam().model_type == "gpt_oss") {
      layer = {layer.kv_heads, 8, 4, 2};  // it has no ordinary feed-forward blocks
    }
    layer.width = layer.width != 0 ? layer.width : 16;
  }
  const auto model = build(full);
  make_real(*model);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = at(*model, described.layer_block_name(static_cast<int64_t>(i)));
    for (int twice = 0; twice < 2; ++twice) {  // the second removal has no effect
      if (layers[i].kv_heads == 0) {
        described.attn_no_op_post_init(*layer);
      }
      if (layers[i].width == 0) {
        described.mlp_no_op_post_init(*layer);
      }
    }
  }
  const auto wanted = build(layers);
  make_real(*wanted);
  shard::test::expect_same_values(*model, *wanted);  // compares the names, too
  const at::Tensor ids = at::arange(6).unsqueeze(0);
  EXPECT_TRUE(
      at::equal(model->forward({.input_ids = ids}).hidden_states, wanted->forward({.input_ids = ids}).hidden_states));
  const nn::RMSNorm no_layer(4, 1e-6);
  EXPECT_THAT(
      any_error::error_of([&] { described.attn_no_op_post_init(*no_layer.ptr()); }),
      HasSubstr("attn_no_op_post_init: expected a decoder layer of this family, found"));
}

TEST_P(Descriptor, CreatesBlocksThatPassHiddenStatesThrough) {
  const auto model = build(layers);
  const auto layer = at(*model, described.layer_block_name(1));
  const auto dummy = described.create_dummy_block(*layer, 1);
  EXPECT_TRUE(described.is_decoder_layer(*dummy));
  EXPECT_EQ(nn::count_parameters(*dummy), 0);
  EXPECT_TRUE(dummy->children().empty());
  const at::Tensor x = at::ones({1, 2, kHidden});
  const auto pass = [&](auto& block) { EXPECT_TRUE(block.forward(x, {}).is_same(x)); };
  if (auto* qwen = dynamic_cast<Qwen3DenseLayerImpl*>(dummy.get())) {
    pass(*qwen);
  } else if (auto* llama = dynamic_cast<Llama3LayerImpl*>(dummy.get())) {
    pass(*llama);
  } else if (auto* olmo = dynamic_cast<Olmo2LayerImpl*>(dummy.get())) {
    pass(*olmo);
  } else if (auto* gemma = dynamic_cast<Gemma3LayerImpl*>(dummy.get())) {
    pass(*gemma);
  } else if (auto* deepseek = dynamic_cast<DeepseekV3LayerImpl*>(dummy.get())) {
    pass(*deepseek);
  } else if (auto* next = dynamic_cast<Qwen3NextLayerImpl*>(dummy.get())) {
    pass(*next);
  } else {
    pass(dynamic_cast<Qwen3MoELayerImpl&>(*dummy));
  }
  EXPECT_THAT(
      any_error::error_of([&] { described.create_dummy_block(*model, 1); }),
      HasSubstr("create_dummy_block: expected a decoder"));
}

// A layer of a homogeneous model whose config.json has these values is the layer of the heterogeneous model.
TEST_P(Descriptor, ReturnsTheConfigKeysThatABlockOverrides) {
  const std::string& type = GetParam().model_type;
  const auto blocks = args_of(type, layers)->block_configs();
  const auto model = build(layers);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto overrides = described.block_config_to_layer_overrides(blocks[i]);
    EXPECT_EQ(overrides.num_key_value_heads.has_value(), layers[i].kv_heads > 0 && type != "deepseek_v3");
    EXPECT_EQ(overrides.intermediate_size.has_value(), layers[i].width > 0 && layers[i].experts == 0);
    EXPECT_EQ(overrides.num_experts.has_value(), layers[i].experts > 0);
    const LayerShape first = layers.front();
    const bool another_kind = is_delta(type, static_cast<int64_t>(i)) != is_delta(type, 0);
    const bool another_shared = layers[i].experts > 0 && layers[i].shared != first.shared;  // no key of a config.json
    if (layers[i].kv_heads <= 0 || layers[i].width <= 0 || another_kind || another_shared) {
      continue;
    }
    const std::vector<LayerShape> uniform(1, first.experts > 0 ? first : LayerShape{4, 32});
    auto args = args_of(GetParam().model_type, uniform);
    ASSERT_FALSE(args->is_heterogeneous());
    auto changed = overrides;
    if (layers[i].experts == 0 && (type == "mixtral" || type == "minimax_m2")) {
      continue;  // all layers of a homogeneous one have experts
    }
    if (layers[i].experts == 0 && args->has_experts()) {
      changed.mlp_only_layers = {0};
    }
    args->apply(changed);
    const auto plain = args->build({});
    const auto wanted = nn::named_parameters(*at(*plain, "model.layers.0"));
    const auto found = nn::named_parameters(*at(*model, described.layer_block_name(static_cast<int64_t>(i))));
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t p = 0; p < found.size(); ++p) {
      EXPECT_EQ(found[p].name, wanted[p].name);
      EXPECT_EQ(found[p].parameter->shape(), wanted[p].parameter->shape()) << found[p].name;
    }
  }
}

// On meta there are no tables to lose: after materialization, positions are right without init_rotary_embedding and
// with it.
TEST_P(Descriptor, HasNoRotaryTablesToRestore) {
  const auto model = build(layers);
  EXPECT_TRUE(model->buffers().empty());
  make_real(*model);
  Weights weights = copies_of(*model);
  const at::Tensor ids = at::arange(6).unsqueeze(0);
  const at::Tensor before = model->forward({.input_ids = ids}).hidden_states;
  described.init_rotary_embedding(*model);
  EXPECT_TRUE(at::equal(model->forward({.input_ids = ids}).hidden_states, before));
  const at::Tensor plain = plain_decoder(ids, weights, layers, GetParam().model_type);
  EXPECT_LE((before - plain).abs().max().item<double>(), 1e-12 * plain.abs().max().item<double>());
}

TEST_P(Descriptor, DescribesHowItsModelsAreLoadedAndComputed) {
  EXPECT_FALSE(described.requires_trust_remote_code());
  EXPECT_TRUE(described.uses_autocast());
  const Node config = parse_json(config_json(GetParam().model_type, layers), "config.json");
  EXPECT_EQ(&described.get_language_model_config(config), &config);
}

}  // namespace
}  // namespace lehr::model::test

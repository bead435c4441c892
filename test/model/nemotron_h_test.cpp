// Nemotron-H: its config.json, the mixers of its layers, counts, packed documents and decoding.
#include "test/model/nemotron_h.h"

#include <gmock/gmock.h>

#include <set>
#include <utility>

#include "lehr/config/json.h"
#include "lehr/descriptor/block_table.h"
#include "lehr/descriptor/model_descriptor.h"
#include "lehr/model/nemotron_h/family.h"
#include "test/model/state_layers.h"

namespace lehr::model {
namespace {

using test::Changes;
using test::nemotron_h_problem;
using test::nemotron_h_with;
using ::testing::HasSubstr;
TEST(NemotronH, ReadsThePublishedKeys) {
  const std::string own = to_json(nemotron_h_family().from_flavor("8B")->to_hf_config("bfloat16"));
  EXPECT_EQ(to_json(nemotron_h_with({})->to_hf_config("bfloat16")), own);
  Changes absent;
  for (const char* key :
       {"head_dim",
        "num_key_value_heads",
        "layer_norm_epsilon",
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "use_conv_bias",
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "time_step_limit",
        "mamba_hidden_act",
        "mlp_hidden_act",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id"}) {
    absent.emplace_back(key, "absent");
  }
  EXPECT_EQ(to_json(nemotron_h_with(absent)->to_hf_config("bfloat16")), own)
      << "absent keys have the values of transformers' class";
  const std::string two = to_json(
      nemotron_h_with({{"num_hidden_layers", "3"}, {"hybrid_override_pattern", "\"M*-\""}})->to_hf_config("bfloat16"));
  EXPECT_EQ(
      two,
      to_json(nemotron_h_with({{"num_hidden_layers", "3"}, {"layers_block_type", R"(["mamba", "attention", "mlp"])"}})
                  ->to_hf_config("bfloat16")));
  EXPECT_EQ(
      two,
      to_json(nemotron_h_with({{"num_hidden_layers", "3"},
                               {"hybrid_override_pattern", "absent"},
                               {"layers_block_type", R"(["linear_attention", "full_attention", "mlp"])"}})
                  ->to_hf_config("bfloat16")));
  EXPECT_EQ(
      to_json(nemotron_h_with({{"hidden_act", "\"gelu\""}, {"num_experts_per_tok", "2"}})->to_hf_config("bfloat16")),
      own)
      << "keys without effect";
}

TEST(NemotronH, RefusesWhatIsNotComputed) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"hybrid_override_pattern", "absent", "'hybrid_override_pattern' is missing"},
      {"hybrid_override_pattern", "\"M-\"", "hybrid_override_pattern: expected one mixer per layer (52, num_hidden_"},
      {"hybrid_override_pattern",
       "\"MxM\"",
       "hybrid_override_pattern[1]: expected M (mamba), * (attention), - (mlp) or E (moe), found x"},
      {"layers_block_type",
       R"(["mlp", "sliding"])",
       "layers_block_type[1]: expected M (mamba), * (attention), - (mlp)"},
      {"mamba_num_heads", "100", "mamba_num_heads: expected a multiple of n_groups (8), found 100"},
      {"n_groups", "0", "n_groups: expected a positive number, found 0"},
      {"ssm_state_size", "-1", "ssm_state_size: expected a positive number, found -1"},
      {"conv_kernel", "17", "conv_kernel: expected at most 16, found 17"},
      {"time_step_min", "-0.1", "time_step_min: expected 0 or a positive number, found -0.1"},
      {"time_step_max", "0.0001", "time_step_max: expected at least time_step_min and time_step_floor (0.001)"},
      {"tie_word_embeddings", "true", "tie_word_embeddings: expected false, found true"},
      {"use_bias", "true", "use_bias: expected false, found true"},
      {"mlp_bias", "true", "mlp_bias: expected false, found true"},
      {"attention_bias", "true", "attention_bias: expected false, found true"},
      {"attention_dropout", "0.1", "attention_dropout: expected 0"},
      {"mamba_hidden_act", "\"gelu\"", "mamba_hidden_act: expected silu, found gelu"},
      {"mlp_hidden_act", "\"silu\"", "mlp_hidden_act: expected relu2, found silu"},
      {"attention_head_dim", "64", "attention_head_dim: expected 128, found 64"},
      {"mamba_d_conv", "4", "mamba_d_conv: this name is not supported; use n_groups, conv_kernel"}};
  for (const auto& [key, value, message] : cases) {
    EXPECT_THAT(nemotron_h_problem({{key, value}}), HasSubstr(message));
  }
  EXPECT_THAT(
      nemotron_h_problem(
          {{"num_hidden_layers", "1"},
           {"hybrid_override_pattern", "\"M\""},
           {"block_configs", R"([{"attention": {"no_op": true}, "ffn": {"intermediate_size": 8}}])"}}),
      HasSubstr("block_configs[0].ffn: the layer has one sub-block, attention or Mamba-2"));
}

// Stored names do not say which sub-block a norm belongs to.
TEST(NemotronH, GroupsItsWeightsBySubblock) {
  const descriptor::ModelFamily family = nemotron_h_family();
  const auto args = family.from_flavor("debugmodel");  // M*-M-M*-
  const auto names = args->state_map(descriptor::ExpertLayout::per_expert).input_names();
  const descriptor::WeightGroups groups = family.descriptor->get_weight_groups(names, 8);
  const auto of_layer = [](int64_t layer, const std::vector<std::string>& endings) {
    std::vector<std::string> full;
    for (const std::string& ending : endings) {
      full.push_back("backbone.layers." + std::to_string(layer) + "." + ending);
    }
    return full;
  };
  using ::testing::UnorderedElementsAreArray;
  EXPECT_THAT(
      groups.at("block_0_attention"),
      UnorderedElementsAreArray(of_layer(
          0,
          {"norm.weight",
           "mixer.in_proj.weight",
           "mixer.conv1d.weight",
           "mixer.conv1d.bias",
           "mixer.dt_bias",
           "mixer.A_log",
           "mixer.D",
           "mixer.norm.weight",
           "mixer.out_proj.weight"})));
  EXPECT_THAT(
      groups.at("block_1_attention"),
      UnorderedElementsAreArray(of_layer(
          1,
          {"norm.weight",
           "mixer.q_proj.weight",
           "mixer.k_proj.weight",
           "mixer.v_proj.weight",
           "mixer.o_proj.weight"})));
  EXPECT_THAT(
      groups.at("block_2_ffn"),
      UnorderedElementsAreArray(of_layer(2, {"norm.weight", "mixer.up_proj.weight", "mixer.down_proj.weight"})));
  EXPECT_THAT(groups.at("embeddings"), ::testing::ElementsAre("backbone.embeddings.weight"));
  EXPECT_THAT(groups.at("lm_head"), UnorderedElementsAreArray({"backbone.norm_f.weight", "lm_head.weight"}));
  EXPECT_EQ(groups.size(), 2U + 8U);
}

// transformers 5 writes a list of the mixers, and not their number.
TEST(NemotronH, CountsItsLayersByTheirTypes) {
  Node config = parse_json(test::kNemotronH8B, "config.json");
  config.erase("num_hidden_layers");
  config.erase("hybrid_override_pattern");
  config.set("layers_block_type", parse_json(R"(["mamba", "mlp", "attention"])", "types"));
  const auto args = nemotron_h_family().from_hf_config(parse_json(to_json(config), "config.json"));
  const Node written = args->to_hf_config("bfloat16");
  EXPECT_EQ(written.at("num_hidden_layers").as_int(), 3);
  EXPECT_EQ(written.at("hybrid_override_pattern").as_string(), "M-*");
}

TEST(NemotronH, HasOneMixerPerLayer) {
  const auto args = nemotron_h_family().from_flavor("debugmodel");  // M*-M-M*-
  const auto names = args->state_map(descriptor::ExpertLayout::per_expert).input_names();
  const std::set<std::string> there(names.begin(), names.end());
  const std::string pattern = "M*-M-M*-";
  for (size_t layer = 0; layer < pattern.size(); ++layer) {
    const std::string own = "backbone.layers." + std::to_string(layer) + ".";
    EXPECT_TRUE(there.contains(own + "norm.weight"));
    for (const char* name :
         {"in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "D", "dt_bias", "norm.weight"}) {
      EXPECT_EQ(there.contains(own + "mixer." + name), pattern[layer] == 'M') << name;
    }
    EXPECT_EQ(there.contains(own + "mixer.q_proj.weight"), pattern[layer] == '*');
    EXPECT_EQ(there.contains(own + "mixer.up_proj.weight"), pattern[layer] == '-');
  }
  EXPECT_TRUE(there.contains("backbone.embeddings.weight") && there.contains("backbone.norm_f.weight"));
  EXPECT_TRUE(there.contains("lm_head.weight"));
  EXPECT_EQ(names.size(), 3 + 3 * 9 + 2 * 5 + 3 * 3);
}

// Sums of matrices, convolutions, norms and vectors by the published sizes.
TEST(NemotronH, CountsTheParametersOfThePublishedSizes) {
  const std::vector<std::pair<std::string, int64_t>> sizes{
      {"8B", 8'100'852'736},
      {"47B", 46'791'554'816},
      {"56B", 56'324'350'464},
      {"Nano-9B-v2", 8'888'227'328},
      {"Nano-12B-v2", 12'310'001'152},
      {"Nano-30B-A3B", 31'577'937'344},
      {"Super-120B-A12B", 120'668'687'360}};
  for (const auto& [flavor, parameters] : sizes) {
    EXPECT_EQ(nemotron_h_family().from_flavor(flavor)->get_nparams_and_flops(64).num_parameters, parameters) << flavor;
  }
}

// Two layers have keys and values. In three others a token writes a state of 16 x 32 numbers per head and reads it, in
// forward; twice as much in backward.
TEST(NemotronH, CountsTheWorkOfStates) {
  const auto args = nemotron_h_family().from_flavor("debugmodel");
  const auto short_rows = args->get_nparams_and_flops(128), long_rows = args->get_nparams_and_flops(256);
  EXPECT_EQ(short_rows.attention_flops_per_pair, 2 * 6 * 8 * (32 + 32));
  EXPECT_EQ(short_rows.kv_cache_per_token, (std::vector<int64_t>{0, 2 * 4 * 32, 0, 0, 0, 0, 2 * 4 * 32, 0}));
  EXPECT_EQ(long_rows.flops_per_token - short_rows.flops_per_token, 128 * short_rows.attention_flops_per_pair);
  const int64_t inner = 8 * 32, channels = inner + 2 * 4 * 16;
  const int64_t mamba = 256 * (inner + channels + 8) + 5 * channels + 3 * 8 + inner + inner * 256;
  EXPECT_EQ(short_rows.layer_flops_per_token[0], 6 * (mamba + 256) + 12 * 8 * 16 * 32);
  EXPECT_EQ(short_rows.layer_flops_per_token[2], 6 * (2 * 256 * 768 + 256));
  EXPECT_EQ(short_rows.layer_flops_per_token[1], 6 * (256 * 32 * (2 * 8 + 2 * 4) + 256) + 6 * 8 * (32 + 32) * 128 / 2);
}

TEST(NemotronH, HasAccountsOfItsLayers) {
  for (const char* bias : {"true", "false"}) {
    const auto args = nemotron_h_with(
        {{"num_hidden_layers", "5"},
         {"hybrid_override_pattern", "\"M*-ME\""},
         {"n_routed_experts", "6"},
         {"num_experts_per_tok", "2"},
         {"moe_intermediate_size", "9"},
         {"moe_shared_expert_intermediate_size", "14"},
         {"hidden_size", "24"},
         {"intermediate_size", "40"},
         {"vocab_size", "31"},
         {"num_attention_heads", "4"},
         {"num_key_value_heads", "2"},
         {"head_dim", "6"},
         {"mamba_num_heads", "6"},
         {"mamba_head_dim", "5"},
         {"n_groups", "2"},
         {"ssm_state_size", "7"},
         {"use_conv_bias", bias}});
    constexpr int64_t kTokens = 11;
    const auto model = args->build({});
    const descriptor::ModelBlocks blocks = descriptor::blocks_of(*args, {.num_tokens = kTokens});
    EXPECT_EQ(blocks.account.total().num_parameters, nn::count_parameters(*model));
    for (const auto& entry : model->named_modules("", /*include_self=*/false)) {
      const std::string layers = "model.layers.";
      if (entry.key().starts_with(layers) && entry.key().size() == layers.size() + 1) {
        const auto index = static_cast<size_t>(std::stoi(entry.key().substr(layers.size())));
        EXPECT_EQ(blocks.account.layers[index].total().num_parameters, nn::count_parameters(*entry.value())) << index;
      }
    }
    const auto& layers = blocks.account.layers;
    EXPECT_EQ(layers[2].attention, descriptor::Account{});
    EXPECT_EQ(layers[0].ffn, descriptor::Account{});
    EXPECT_EQ(layers[1].attention.kv_cache_bytes, 2 * 2 * 6 * kTokens * 2);
    EXPECT_EQ(layers[0].attention.kv_cache_bytes, 2 * 3 * (30 + 2 * 2 * 7) + 4 * 30 * 7);
    EXPECT_EQ(layers[0].attention.decode_flops, 2 * 24 * (30 + 30 + 2 * 2 * 7 + 6 + 30) + 4 * 30 * 7);
    EXPECT_EQ(layers[0].attention.prefill_flops, kTokens * layers[0].attention.decode_flops);
    // The router, the shared expert, and the experts of a token, two matrices each.
    EXPECT_EQ(layers[4].ffn.decode_flops, 2 * 24 * (6 + 2 * 14 + 2 * 2 * 9));
    EXPECT_EQ(layers[4].attention, descriptor::Account{});
    EXPECT_EQ(descriptor::attention_text(blocks, 0), "Mamba-2, 6 heads");
    EXPECT_EQ(descriptor::attention_text(blocks, 2), "none");
  }
}

TEST(NemotronH, MovesItsMixersWithTheLayers) {
  const auto args = nemotron_h_family().from_flavor("debugmodel");
  args->shift_layers(3);
  EXPECT_EQ(args->to_hf_config("float32").at("hybrid_override_pattern").as_string(), "M*-M*-M-");
}

TEST(NemotronH, ComputesPackedDocumentsLikeSeparateOnes) {
  for (const char* flavor : {"debugmodel", "debugmodel_moe"}) {
    test::expect_packed_documents_equal_separate_ones(*test::model_with_states(nemotron_h_family(), flavor));
  }
}

// Attention without rotary positions knows no positions but through Mamba-2.
TEST(NemotronH, IsIndependentOfPositionIds) {
  const at::NoGradGuard no_grad;
  const auto model = test::model_with_states(nemotron_h_family());
  nn::ModelInputs inputs;
  inputs.input_ids = at::randint(31, {1, 20}, at::kLong);
  const at::Tensor expected = model->forward(inputs).hidden_states;
  inputs.position_ids = at::arange(20).mul(3).add(7).unsqueeze(0);
  EXPECT_TRUE(at::equal(model->forward(inputs).hidden_states, expected));
}

TEST(NemotronH, DecodesFromItsCachesLikeOneForward) {
  for (const char* flavor : {"debugmodel", "debugmodel_moe"}) {
    test::expect_decoding_equals_one_forward(*test::model_with_states(nemotron_h_family(), flavor));
  }
}

}  // namespace
}  // namespace lehr::model

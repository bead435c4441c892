// The experts of Nemotron-H: their keys of config.json and their names in checkpoints.
#include <gmock/gmock.h>

#include <tuple>

#include "lehr/descriptor/model_descriptor.h"
#include "test/base/error_of.h"
#include "test/model/nemotron_h.h"

namespace lehr::model {
namespace {

using test::Changes;
using test::nemotron_h_problem;
using test::nemotron_h_with;
using ::testing::HasSubstr;

// The keys of NVIDIA's config.json of the 30B-A3B model, and what else it has.
const Changes kNano30B{
    {"hidden_size", "2688"},
    {"hybrid_override_pattern", "\"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME\""},
    {"intermediate_size", "1856"},
    {"mamba_num_heads", "64"},
    {"mamba_ssm_cache_dtype", "\"float32\""},
    {"max_position_embeddings", "262144"},
    {"moe_intermediate_size", "1856"},
    {"moe_shared_expert_intermediate_size", "3712"},
    {"n_group", "1"},
    {"n_routed_experts", "128"},
    {"n_shared_experts", "1"},
    {"norm_eps", "1e-05"},
    {"norm_topk_prob", "true"},
    {"num_experts_per_tok", "6"},
    {"num_key_value_heads", "2"},
    {"partial_rotary_factor", "1.0"},
    {"rope_theta", "10000"},
    {"routed_scaling_factor", "2.5"},
    {"topk_group", "1"}};

// What differs in that of the 120B-A12B model.
const Changes kSuper120B{
    {"hidden_size", "4096"},
    {"hybrid_override_pattern",
     "\"MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME\""},
    {"intermediate_size", "2688"},
    {"mamba_num_heads", "128"},
    {"moe_intermediate_size", "2688"},
    {"moe_latent_size", "1024"},
    {"moe_shared_expert_intermediate_size", "5376"},
    {"n_routed_experts", "512"},
    {"num_experts_per_tok", "22"},
    {"num_hidden_layers", "88"},
    {"routed_scaling_factor", "5.0"}};

Changes joined(Changes changes, const Changes& more) {
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

TEST(NemotronHExperts, AreReadFromThePublishedKeys) {
  const Node own = nemotron_h_family().from_flavor("Nano-30B-A3B")->to_hf_config("bfloat16");
  EXPECT_EQ(to_json(nemotron_h_with(kNano30B)->to_hf_config("bfloat16")), to_json(own));
  EXPECT_EQ(own.at("moe_shared_expert_intermediate_size").as_int(), 3712);
  EXPECT_EQ(own.find("num_experts"), nullptr) << "a key of other families";
  EXPECT_EQ(own.find("moe_latent_size"), nullptr);
  const Node super = nemotron_h_family().from_flavor("Super-120B-A12B")->to_hf_config("bfloat16");
  EXPECT_EQ(to_json(nemotron_h_with(joined(kNano30B, kSuper120B))->to_hf_config("bfloat16")), to_json(super));
  EXPECT_EQ(super.at("moe_latent_size").as_int(), 1024);
  const Changes two{{"num_hidden_layers", "2"}, {"hybrid_override_pattern", "\"ME\""}};
  const std::string defaults = to_json(nemotron_h_with(two)->to_hf_config("bfloat16"));
  EXPECT_EQ(
      defaults,
      to_json(nemotron_h_with(joined(
                                  two,
                                  {{"n_routed_experts", "8"},
                                   {"num_experts_per_tok", "2"},
                                   {"moe_intermediate_size", "7688"},
                                   {"moe_shared_expert_intermediate_size", "7688"},
                                   {"n_shared_experts", "1"},
                                   {"norm_topk_prob", "true"},
                                   {"routed_scaling_factor", "1.0"},
                                   {"n_group", "1"},
                                   {"topk_group", "1"},
                                   {"moe_latent_size", "null"}}))
                  ->to_hf_config("bfloat16")))
      << "absent keys have the values of transformers' class";
  EXPECT_EQ(
      defaults,
      to_json(nemotron_h_with({{"num_hidden_layers", "2"}, {"layers_block_type", R"(["linear_attention", "moe"])"}})
                  ->to_hf_config("bfloat16")));
}

TEST(NemotronHExperts, AreRefusedIfOthers) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"moe_latent_size", "0", "moe_latent_size: expected a positive number, found 0"},
      {"n_shared_experts", "2", "n_shared_experts: expected 1, found 2; the width of the shared expert is moe_shared_"},
      {"moe_shared_expert_intermediate_size", "0", "moe_shared_expert_intermediate_size: expected a positive number"},
      {"num_local_experts", "64", "num_local_experts: defines the same as n_routed_experts (128), found 64"},
      {"num_experts_per_tok", "129", "num_experts_per_tok: expected at most num_experts (128), found 129"},
      {"n_group", "3", "n_group: expected a divisor of the number of experts (128)"},
      {"topk_group", "2", "topk_group: expected 1 to n_group (1), found 2"},
      {"routed_scaling_factor", "0", "routed_scaling_factor: expected a positive number, found 0"}};
  for (const auto& [key, value, message] : cases) {
    EXPECT_THAT(nemotron_h_problem(joined(kNano30B, {{key, value}})), HasSubstr(message));
  }
  const auto args = nemotron_h_with(kNano30B);
  descriptor::ModelOverrides overrides;
  overrides.mlp_only_layers = {1};
  args->apply(overrides);
  EXPECT_THAT(
      any_error::error_of([&] { args->check("model.args."); }),
      HasSubstr("mlp_only_layers: in models of this type, hybrid_override_pattern says"));
  const Changes one{{"num_hidden_layers", "1"}};
  const std::string attention = R"([{"attention": {"no_op": true}, "ffn": )";
  const std::string moe = R"({"moe": {"num_local_experts": 4, "num_experts_per_tok": 2, "expert_intermediate_dim": 8, )"
                          R"("shared_expert_intermediate_dim": 6}}}])";
  EXPECT_THAT(
      nemotron_h_problem(joined(
          one, {{"hybrid_override_pattern", "\"E\""}, {"block_configs", attention + R"({"intermediate_size": 8}}])"}})),
      HasSubstr("block_configs[0].ffn: the layer has experts (hybrid_override_pattern); expected moe, or no_op"));
  EXPECT_THAT(
      nemotron_h_problem(joined(one, {{"hybrid_override_pattern", "\"-\""}, {"block_configs", attention + moe}})),
      HasSubstr(
          "block_configs[0].ffn: the layer has no experts (hybrid_override_pattern); expected intermediate_size"));
  EXPECT_EQ(
      nemotron_h_problem(joined(one, {{"hybrid_override_pattern", "\"E\""}, {"block_configs", attention + moe}})),
      "accepted");
}

TEST(NemotronHExperts, AreNamedAsPublished) {
  const descriptor::ModelFamily family = nemotron_h_family();
  const auto args = family.from_flavor("debugmodel_moe");  // M*E-MEM*
  const auto names = args->state_map(descriptor::ExpertLayout::per_expert).input_names();
  std::vector<std::string> wanted{"norm.weight", "mixer.gate.weight", "mixer.gate.e_score_correction_bias"};
  for (const std::string projection : {"up_proj.weight", "down_proj.weight"}) {
    wanted.push_back("mixer.shared_experts." + projection);
    for (int64_t expert = 0; expert < 32; ++expert) {
      wanted.push_back("mixer.experts." + std::to_string(expert) + "." + projection);
    }
  }
  for (std::string& name : wanted) {
    name = "backbone.layers.2." + name;
  }
  const descriptor::WeightGroups groups = family.descriptor->get_weight_groups(names, 8);
  EXPECT_THAT(groups.at("block_2_ffn"), ::testing::UnorderedElementsAreArray(wanted));
  EXPECT_EQ(groups.at("block_3_ffn").size(), 3U);
  const auto fused = args->state_map(descriptor::ExpertLayout::fused).input_names();
  EXPECT_THAT(
      fused,
      ::testing::IsSupersetOf(
          {"backbone.layers.5.mixer.experts.up_proj", "backbone.layers.5.mixer.experts.down_proj"}));
  EXPECT_EQ(descriptor::expert_layout_of(fused), descriptor::ExpertLayout::fused);
  EXPECT_EQ(descriptor::expert_layout_of(names), descriptor::ExpertLayout::per_expert);
}

TEST(NemotronHExperts, InALatentSpaceHaveTheNamesOfTheirProjections) {
  const descriptor::ModelFamily family = nemotron_h_family();
  const auto args = family.from_flavor("Super-120B-A12B");
  const auto names = args->state_map(descriptor::ExpertLayout::fused).input_names();
  EXPECT_THAT(
      family.descriptor->get_weight_groups(names, 88).at("block_1_ffn"),
      ::testing::UnorderedElementsAre(
          "backbone.layers.1.norm.weight",
          "backbone.layers.1.mixer.gate.weight",
          "backbone.layers.1.mixer.gate.e_score_correction_bias",
          "backbone.layers.1.mixer.experts.up_proj",
          "backbone.layers.1.mixer.experts.down_proj",
          "backbone.layers.1.mixer.fc1_latent_proj.weight",
          "backbone.layers.1.mixer.fc2_latent_proj.weight",
          "backbone.layers.1.mixer.shared_experts.up_proj.weight",
          "backbone.layers.1.mixer.shared_experts.down_proj.weight"));
}

}  // namespace
}  // namespace lehr::model

#include "lehr/verify/verify.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "lehr/state/safetensors_writer.h"
#include "test/train/support.h"

namespace lehr::verify {
namespace {

// Tolerances are those of lehr verify, ten times the observed error of float32; 1e-9 for float64.
class Reference : public ::testing::TestWithParam<const char*> {};

TEST_P(Reference, EqualsTransformersInFloat32AndFloat64) {
  const std::filesystem::path folder = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference" / GetParam();
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const VerifyReport report = verify_folder({.model = folder, .dtype = dtype}, train::testing::families());
    EXPECT_GT(report.rows.size(), 24U);
    EXPECT_TRUE(report.ok()) << format_report(report);
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfEveryKind,
    Reference,
    ::testing::Values(
        "qwen3_tied_v4config",
        "qwen3_seqcls",
        "qwen3_tokcls",
        "llama_tokcls",
        "llama_tokcls_no_bias",
        "qwen3moe_sparse_step2",
        "llama_rope_llama3",
        "olmo2"));

// script/make_family_references.py says what is special in each.
INSTANTIATE_TEST_SUITE_P(
    OfDenseFamilies,
    Reference,
    ::testing::Values(
        "llama_biases",
        "llama_yarn",
        "llama_linear",
        "qwen3_yarn",
        "qwen3_window",
        "qwen3_biases",
        "qwen2_tied",
        "qwen2_window",
        "qwen2_layer_types",
        "qwen2_yarn",
        "mistral_window",
        "mistral_full",
        "mistral_head_dim",
        "mistral_tied",
        "smollm3_interval",
        "smollm3_layers",
        "smollm3_window",
        "smollm3_layer_types",
        "olmo2_grouped",
        "olmo2_tied",
        "olmo2_biases",
        "olmo3_yarn",
        "olmo3_pattern",
        "olmo3_two_bases",
        "olmo3_full",
        "gemma3_pattern",
        "gemma3_linear",
        "gemma3_untied",
        "gemma3_tables",
        "gemma4_dense",
        "gemma4_values",
        "gemma4_small",
        "gemma4_shared_values",
        "qwen3_5_interval",
        "qwen3_5_types",
        "qwen3_5_chunks",
        "qwen3_5_heads",
        "nemotron_h_pattern",
        "nemotron_h_groups",
        "nemotron_h_chunks",
        "nemotron_h_types"));

INSTANTIATE_TEST_SUITE_P(
    OfFamiliesWithExperts,
    Reference,
    ::testing::Values(
        "qwen3_moe_layers",
        "qwen3_moe_window",
        "qwen3_moe_fused",
        "gemma4_experts",
        "gemma4_per_layer",
        "gemma4_inputs",
        "mixtral_experts",
        "mixtral_window",
        "mixtral_yarn",
        "mixtral_fused",
        "deepseek_v3_yarn",
        "deepseek_v3_one_group",
        "deepseek_v3_biases",
        "deepseek_v3_fused",
        "kimi_k2",
        "glm4_moe_norms",
        "glm4_moe_air",
        "glm4_moe_groups",
        "glm4_moe_fused",
        "minimax_m2_published",
        "minimax_m2_table",
        "minimax_m2_yarn",
        "minimax_m2_fused",
        "qwen3_next_interval",
        "qwen3_next_types",
        "qwen3_next_chunks",
        "qwen3_next_fused",
        "qwen3_5_moe_interval",
        "qwen3_5_moe_chunks",
        "qwen3_5_moe_fused",
        "qwen3_5_moe_experts",
        "nemotron_h_experts",
        "nemotron_h_router",
        "nemotron_h_fused",
        "nemotron_h_latent",
        "gpt_oss_yarn",
        "gpt_oss_clamp",
        "gpt_oss_defaults",
        "gpt_oss_full",
        "gpt_oss_mxfp4"));

TEST(Verify, NamesTheTensorsOverTheirTolerance) {
  const auto folder = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference";
  VerifyOptions options{.model = folder / "qwen3_tied_v4config"};
  options.atol = 0;
  const VerifyReport report = verify_folder(options, train::testing::families());
  EXPECT_FALSE(report.ok());
  EXPECT_NE(format_report(report).find("OVER"), std::string::npos);
}

// Adapters whose B is zero compute the results of their base.
TEST(Verify, ComparesTheOutputsOfAdaptersButNoGradients) {
  const auto base = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference/olmo2";
  const train::testing::Folder folder;
  std::ofstream(folder.path() / "adapter_config.json")
      << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["o_proj"], "layers_to_transform": [0],)"
      << R"( "base_model_name_or_path": ")" << base.string() << "\"}";
  const at::Tensor weight =
      train::testing::tensors(base / "model.safetensors", "").at("model.layers.0.self_attn.o_proj.weight");
  const std::string head = "base_model.model.model.layers.0.self_attn.o_proj.";
  state::save_safetensors(
      folder.path() / "adapter_model.safetensors",
      {{head + "lora_A.weight", at::ones({2, weight.size(1)})},
       {head + "lora_B.weight", at::zeros({weight.size(0), 2})}});
  const VerifyReport report =
      verify_folder({.model = folder.path(), .reference = base / "oracle.safetensors"}, train::testing::families());
  EXPECT_TRUE(report.ok());
  EXPECT_FALSE(report.rows.empty());
  EXPECT_NE(
      format_report(report).find("grads.safetensors, since the model has adapters: not compared"), std::string::npos);
}

// A reference with twins in float64 of hidden states and gradients, from what was computed itself, and one stranger.
TEST(Verify, ComparesTwinsInFloat64AndListsWhatItDoesNotCompare) {
  const auto source = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference/olmo2";
  const train::testing::Folder folder;
  std::filesystem::copy(source, folder.path());
  const VerifyOptions options{.model = folder.path(), .dtype = at::kDouble};
  const auto computed = verify_folder(options, train::testing::families()).computed;
  const std::string norm = "model.layers.1.self_attn.k_norm.weight";
  state::NamedTensors oracle, grads;
  for (const auto& [name, tensor] : train::testing::tensors(source / "oracle.safetensors", "")) {
    oracle.emplace_back(name, tensor);
  }
  for (const auto& [name, tensor] : train::testing::tensors(source / "grads.safetensors", "")) {
    grads.emplace_back(name, tensor);
  }
  oracle.emplace_back("hidden.1_f64", computed.at("hidden.1"));
  oracle.emplace_back("hidden.2_f64", computed.at("hidden.2") + 1e-8);
  oracle.emplace_back("hidden.77_f64", computed.at("hidden.1"));
  grads.emplace_back(norm + "_f64", computed.at("grad:" + norm));
  grads.emplace_back("stranger", computed.at("loss"));
  state::save_safetensors(folder.path() / "oracle.safetensors", oracle);
  state::save_safetensors(folder.path() / "grads.safetensors", grads);
  const VerifyReport report = verify_folder(options, train::testing::families());
  const auto ok = [&](const std::string& name) {
    const auto row =
        std::find_if(report.rows.begin(), report.rows.end(), [&](const VerifyRow& one) { return one.name == name; });
    EXPECT_NE(row, report.rows.end()) << name;
    return row != report.rows.end() && row->ok;
  };
  EXPECT_TRUE(ok("hidden.1_f64"));
  EXPECT_FALSE(ok("hidden.2_f64")) << "1e-8 is more than float64 is off";
  EXPECT_TRUE(ok("grad:" + norm + "_f64"));
  EXPECT_EQ(report.left_out, (std::vector<std::string>{"grad:stranger", "hidden.77_f64"}));
  EXPECT_NE(format_report(report).find("\ngrad:stranger: not compared\n"), std::string::npos);
}

// Every tensor but input_ids is optional, and logits of padding are not compared.
TEST(Verify, TakesReferencesWithoutTheirOptionalParts) {
  const auto source = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference/qwen3moe_sparse_step2";
  const train::testing::Folder folder;
  std::filesystem::copy(source, folder.path());
  std::filesystem::remove(folder.path() / "grads.safetensors");  // their loss is that of the labels
  auto all = train::testing::tensors(source / "oracle.safetensors", "");
  all.at("padded_right_logits").masked_fill_(all.at("padded_right_mask").eq(0).unsqueeze(-1), 7);
  state::NamedTensors oracle;
  for (const std::string name :
       {"input_ids",
        "logits",
        "aux_loss",
        "loss_sum",
        "packed_input_ids",
        "padded_input_ids",
        "padded_right_logits",
        "padded_right_mask",
        "train_input_ids"}) {
    oracle.emplace_back(name, all.at(name));
  }
  state::save_safetensors(folder.path() / "oracle.safetensors", oracle);
  const VerifyReport report = verify_folder({.model = folder.path()}, train::testing::families());
  EXPECT_TRUE(report.ok()) << format_report(report);
  ASSERT_EQ(report.rows.size(), 2U);
  EXPECT_EQ(report.rows[0].name, "logits");
  EXPECT_EQ(report.rows[1].name, "padded_right_logits");
  EXPECT_EQ(
      std::set<std::string>(report.left_out.begin(), report.left_out.end()),
      (std::set<std::string>{"aux_loss", "loss_sum", "packed_input_ids", "train_input_ids"}));
}

}  // namespace
}  // namespace lehr::verify

// config.json of models that were made from published ones: no key is lost, and changes have their effect.
#include "lehr/descriptor/config_update.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <set>
#include <tuple>

#include "lehr/config/json.h"
#include "lehr/model/config_values.h"
#include "test/model/heterogeneous.h"

namespace lehr::model {
namespace {

using descriptor::updated_config;
using descriptor::updated_generation_config;

const std::filesystem::path kPublished = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/published";

Node without(Node config, const char* key) {
  config.erase(key);
  return config;
}

struct Source {
  explicit Source(const std::string& name)
      : config(parse_json_file(kPublished / (name + ".json"))),
        family(families.of_hf_folder(kPublished / (name + ".json"))) {}

  // What a run writes that changed these keys of the shape, as [model.args] does.
  Node updated(
      const std::string& keys = "{}", const std::string& dtype = "bfloat16", bool keeps_mtp_modules = true) const {
    auto args = family.from_hf_config(config);
    const Node changes = parse_json(keys, "model.args");
    if (changes.size() > 0) {
      args = family.with_config_keys(*args, changes, "model.args");
    }
    args->keep_mtp_modules(keeps_mtp_modules);
    Node result = updated_config(config, family, *args, dtype);
    EXPECT_EQ(to_json(updated_config(result, family, *args, dtype)), to_json(result)) << "the run was resumed";
    return result;
  }
  std::string read(const Node& node) const { return to_json(family.from_hf_config(node)->to_hf_config("bfloat16")); }

  descriptor::ModelFamilies families = test::all_families();
  Node config;
  const descriptor::ModelFamily& family;
};

TEST(PublishedConfigs, LoseNoKeyAndNoOrder) {
  int64_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kPublished)) {
    const Source source(file.path().stem().string());
    const std::string dtype = descriptor::dtype_of(source.config, "bfloat16");
    for (const bool keeps_mtp_modules : {true, false}) {
      const Node result = source.updated("{}", dtype, keeps_mtp_modules);
      Node expected = without(without(source.config, "quantization_config"), "auto_map");
      expected.set("model_type", Node(source.family.hf_model_types.front()));  // Kimi K2 has another one
      if (const Node* modules = result.find(descriptor::kMtpModulesKey)) {
        const int64_t modules_of_source = int_or(source.config, descriptor::kMtpModulesKey, 1);
        EXPECT_EQ(modules->as_int(), keeps_mtp_modules ? modules_of_source : 0) << file.path();
        expected.set(descriptor::kMtpModulesKey, *modules);
      }
      if (expected.find("dtype") == nullptr) {
        expected.set("torch_dtype", Node(dtype));  // gpt-oss has none
      }
      EXPECT_EQ(to_json(result, true), to_json(expected, true)) << file.path();
    }
    ++count;
  }
  EXPECT_GE(count, 12);
}

// transformers does not know Kimi K2's model_type without the code of its folder, which is left out.
TEST(UpdatedConfig, OfKimiK2IsAModelOfDeepseekV3) {
  const Source source("kimi_k2_instruct");
  EXPECT_EQ(source.config.at("model_type").as_string(), "kimi_k2");
  const Node result = source.updated(R"({"num_hidden_layers": 2})");
  EXPECT_EQ(result.at("model_type").as_string(), "deepseek_v3");
  EXPECT_EQ(result.at("architectures").at(0).as_string(), "DeepseekV3ForCausalLM");
  EXPECT_EQ(result.find("auto_map"), nullptr);
  EXPECT_EQ(result.at("aux_loss_alpha").as_double(), 0.001) << "not read, and kept";
}

TEST(UpdatedConfig, ReplacesWhatHasChanged) {
  const Source source("llama3.1_8b");
  const Node result = source.updated(R"({"rope_theta": 1000000.0, "num_hidden_layers": 8})", "float32");
  EXPECT_EQ(result.at("rope_theta").as_double(), 1e6);
  EXPECT_EQ(result.at("num_hidden_layers").as_int(), 8);
  EXPECT_EQ(result.at("torch_dtype").as_string(), "float32");
  EXPECT_EQ(result.at("pretraining_tp").as_int(), 1);
  EXPECT_EQ(to_json(result.at("rope_scaling")), to_json(source.config.at("rope_scaling")));
}

// transformers 5 writes both in one table.
TEST(UpdatedConfig, KeepsTheFormOfKeysUnlessAChangeNeedsAnother) {
  Source source("llama3.1_8b");
  Node rope = source.config.at("rope_scaling");
  rope.set("rope_theta", source.config.at("rope_theta"));
  source.config = without(without(source.config, "rope_scaling"), "rope_theta");
  source.config.set("rope_parameters", rope);
  source.config = without(source.config, "torch_dtype");
  source.config.set("dtype", Node("bfloat16"));
  const Node same = source.updated();
  EXPECT_EQ(to_json(same.at("rope_parameters")), to_json(rope));
  EXPECT_EQ(same.find("rope_theta"), nullptr);
  EXPECT_EQ(same.find("torch_dtype"), nullptr);

  const Node other = source.updated(R"({"rope_theta": 1000000.0})");
  EXPECT_NE(source.read(other), source.read(source.config));
  EXPECT_THAT(source.read(other), testing::HasSubstr("\"rope_theta\":1000000"));
  EXPECT_EQ(other.at("pretraining_tp").as_int(), 1);
  EXPECT_EQ(other.find("torch_dtype"), nullptr) << "one name of the dtype";
}

TEST(UpdatedConfig, KeepsNamesOfLabelsWhileTheirNumberIsTheSame) {
  Source source("llama3.2_1b_ner");
  EXPECT_EQ(source.updated().at("id2label").at("3").as_string(), "B-ORG");
  auto args = source.family.from_hf_config(source.config);
  args->set_token_classification(2, 0.1);
  const Node result = updated_config(source.config, source.family, *args, "bfloat16");
  EXPECT_EQ(to_json(result.at("id2label")), R"({"0":"LABEL_0","1":"LABEL_1"})");
}

// Also one that the other family could read: a Mistral model is a Llama with a window.
TEST(UpdatedConfig, OfAnotherFamilyIsNotTaken) {
  const Source source("mistral_7b_v0.3");
  const descriptor::ModelFamily& other = source.families.at("llama3");
  EXPECT_NO_THROW(other.from_hf_config(source.config));
  const auto args = other.from_flavor("debugmodel");
  EXPECT_EQ(to_json(updated_config(source.config, other, *args, "float32")), to_json(args->to_hf_config("float32")));
  EXPECT_EQ(to_json(updated_config(Node(), other, *args, "float32")), to_json(args->to_hf_config("float32")));
}

TEST(UpdatedGenerationConfig, AddsStopTokens) {
  const Node source =
      parse_json(R"({"do_sample": false, "eos_token_id": 7, "temperature": 0.6})", "generation_config.json");
  EXPECT_EQ(
      to_json(updated_generation_config(source, {7, 9}, 3)),
      R"({"do_sample":false,"eos_token_id":[7,9],"temperature":0.6,"pad_token_id":3})");
  EXPECT_EQ(to_json(updated_generation_config(source, {7}, std::nullopt)), to_json(source));
}

// Keys that a new model chooses for itself, or that hold for the published files only.
const std::set<std::string> kNotOfAFlavor{
    "architectures", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id", "torch_dtype"};

TEST(PublishedFolders, FlavorsHaveTheirSettings) {
  const auto families = test::all_families();
  for (const auto& [family, flavor, file] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"deepseek_v3", "671B", "deepseek_v3.json"},
           {"deepseek_v3", "Kimi-K2-1T", "kimi_k2_instruct.json"},
           {"gemma3", "1B", "gemma3_1b.json"},
           {"glm4_moe", "Air-106B", "glm4.5_air.json"},
           {"gpt_oss", "20b", "gpt_oss_20b.json"},
           {"llama3", "1B", "llama3.2_1b_instruct.json"},
           {"llama3", "8B", "llama3.1_8b.json"},
           {"mistral", "7B-v0.3", "mistral_7b_v0.3.json"},
           {"olmo2", "7B", "olmo2_7b.json"},
           {"qwen2", "7B", "qwen2.5_7b_instruct.json"},
           {"qwen3", "0.6B", "qwen3_0.6b.json"},
           {"qwen3", "8B", "qwen3_8b.json"},
           {"qwen3_moe", "30B-A3B", "qwen3_30b_a3b.json"},
           {"qwen3_next", "80B-A3B", "qwen3_next_80b_a3b.json"}}) {
    SCOPED_TRACE(file);
    const Node ours = families.from_flavor(family, flavor)->to_hf_config("bfloat16");
    const Node theirs = families.at(family).from_hf_folder(kPublished / file)->to_hf_config("bfloat16");
    for (const auto& [key, value] : theirs.entries()) {
      const bool is_longer = key == "max_position_embeddings" && family == std::string("qwen2");  // the base model
      if (!kNotOfAFlavor.contains(key) && !is_longer) {
        const Node* const own = ours.find(key);
        EXPECT_EQ(own != nullptr ? to_json(*own) : "nothing", to_json(value)) << key;
      }
    }
  }
}

}  // namespace
}  // namespace lehr::model

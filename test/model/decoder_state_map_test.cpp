// State maps of the families, compared with checkpoints: names, both layouts of experts, pipeline stages, and bit-exact
// round trips.
#include "lehr/model/decoder_state_map.h"

#include <gmock/gmock.h>

#include <ctime>
#include <map>

#include "lehr/config/node.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/weights.h"
#include "test/model/families.h"

namespace lehr::model {
namespace {

using descriptor::ExpertLayout;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Tensors = std::map<std::string, at::Tensor>;

std::filesystem::path reference(const std::string& name) {
  return std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference" / name;
}

state::NamedTensors read_all(const state::WeightReader& reader) {
  state::NamedTensors tensors;
  for (const auto& name : reader.names()) {
    tensors.emplace_back(name, reader.tensor(name));
  }
  return tensors;
}

state::NamedTensors mapped(const state::StateMap& map, const state::NamedTensors& tensors) {
  const state::ValueSource source(tensors);
  state::NamedTensors results;
  state::stream(state::BoundMap(map, source.specs()), source, [&](const state::MappedTensor& part) {
    results.emplace_back(part.name, part.tensor);
  });
  return results;
}

void expect_same(const state::NamedTensors& found, const state::NamedTensors& wanted) {
  const Tensors by_name(found.begin(), found.end());
  EXPECT_EQ(by_name.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    EXPECT_EQ(by_name.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(by_name.at(name), tensor)) << name;
  }
}

std::vector<std::string> names_of(const state::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
  }
  return names;
}

state::NameSet parameters_of(const nn::Module& model) {
  state::NameSet names;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    names.insert(name);
  }
  return names;
}

class EveryFamilyStateMap : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<descriptor::ModelArgs> args = test::all_families().from_hf_folder(reference(GetParam()));
  state::WeightReader reader{reference(GetParam())};
};

TEST_P(EveryFamilyStateMap, RoundTripsEveryBitInBothLayouts) {
  const state::NamedTensors stored = read_all(reader);
  const state::StateMap map = args->state_map(ExpertLayout::per_expert);
  const state::NamedTensors parameters = mapped(map, stored);
  // Names and shapes are those of the model.
  const auto model = args->build({});
  EXPECT_EQ(parameters.size(), nn::named_parameters(*model).size());
  const Tensors by_name(parameters.begin(), parameters.end());
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    EXPECT_EQ(by_name.at(name).sizes(), at::IntArrayRef(parameter->shape())) << name;
  }
  expect_same(mapped(map.inverse(), parameters), stored);

  const state::StateMap fused = args->state_map(ExpertLayout::fused);
  const state::NamedTensors in_fused = mapped(fused.inverse(), parameters);
  expect_same(mapped(fused, in_fused), parameters);
  expect_same(mapped(state::sequential({fused, map.inverse()}), in_fused), stored);
  expect_same(mapped(state::sequential({map, fused.inverse()}), stored), in_fused);
}

TEST_P(EveryFamilyStateMap, StagesTogetherAreTheWholeModel) {
  const state::NamedTensors stored = read_all(reader);
  const Node config = args->to_hf_config("float32");
  const bool tied = config.at("tie_word_embeddings").as_bool();
  const int64_t most = config.at("num_hidden_layers").as_int();
  for (const ExpertLayout layout : {ExpertLayout::per_expert, ExpertLayout::fused}) {
    const state::StateMap map = args->state_map(layout);
    const state::NamedTensors whole =
        mapped(state::sequential({args->state_map(ExpertLayout::per_expert), map.inverse()}), stored);
    for (int64_t num_stages = 1; num_stages <= most; ++num_stages) {
      state::NamedTensors read;
      state::NamedTensors written;
      for (int64_t stage = 0; stage < num_stages; ++stage) {
        const auto model = args->build({.stage = {.current_stage = stage, .num_stages = num_stages}});
        const state::NameSet mine = parameters_of(*model);
        const state::StateMap share = map.to(mine);
        EXPECT_EQ(share.outputs().size(), mine.size());
        for (const auto& name : share.input_names()) {
          read.emplace_back(name, Tensors(whole.begin(), whole.end()).at(name));
        }
        const state::NamedTensors parameters = mapped(share, whole);
        for (auto& tensor : mapped(map.inverse().from(mine), parameters)) {
          written.push_back(std::move(tensor));
        }
      }
      // The first and the last stage both hold a tied table; the first stage's table comes first.
      const size_t twice = tied && num_stages > 1 ? 1 : 0;
      EXPECT_EQ(read.size(), whole.size() + twice) << "each tensor is read by one stage";
      EXPECT_EQ(written.size(), whole.size() + twice) << "and written by one";
      expect_same(read, whole);
      expect_same(written, whole);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    References,
    EveryFamilyStateMap,
    ::testing::Values(
        "qwen3_tied_v4config",
        "qwen3_seqcls",
        "qwen3_tokcls",
        "llama_tokcls_no_bias",
        "qwen3moe_sparse_step2",
        "llama_rope_llama3",
        "olmo2",
        "qwen2_tied",
        "mistral_window",
        "smollm3_layers",
        "olmo3_yarn",
        "gemma3_pattern",
        "gemma4_dense",
        "gemma4_experts",
        "gemma4_small",
        "mixtral_experts",
        "deepseek_v3_yarn",
        "deepseek_v3_one_group",
        "glm4_moe_air",
        "kimi_k2",
        "minimax_m2_published",
        "gpt_oss_yarn",
        "qwen3_next_interval",
        "qwen3_5_types",
        "qwen3_5_moe_experts",
        "nemotron_h_groups",
        "nemotron_h_types",
        "nemotron_h_router"));

TEST(DecoderStateMap, FusesExpertsLikeTransformers5) {
  const auto args = test::all_families().from_hf_folder(reference("qwen3moe_sparse_step2"));
  const state::WeightReader reader(reference("qwen3moe_sparse_step2"));
  const state::StateMap to_fused =
      state::sequential({args->state_map(ExpertLayout::per_expert), args->state_map(ExpertLayout::fused).inverse()});
  const state::NamedTensors fused = mapped(to_fused, read_all(reader));
  const Tensors by_name(fused.begin(), fused.end());
  const std::string layer = "model.layers.1.mlp.experts.";
  std::vector<at::Tensor> gate_up;
  std::vector<at::Tensor> down;
  for (int expert = 0; expert < 8; ++expert) {
    const std::string one = layer + std::to_string(expert);
    gate_up.push_back(at::cat({reader.tensor(one + ".gate_proj.weight"), reader.tensor(one + ".up_proj.weight")}, 0));
    down.push_back(reader.tensor(one + ".down_proj.weight"));
  }
  EXPECT_TRUE(at::equal(by_name.at(layer + "gate_up_proj"), at::stack(gate_up)));
  EXPECT_TRUE(at::equal(by_name.at(layer + "down_proj"), at::stack(down)));
  EXPECT_TRUE(at::equal(by_name.at("model.layers.1.mlp.gate.weight"), reader.tensor("model.layers.1.mlp.gate.weight")));
  EXPECT_EQ(descriptor::expert_layout_of(names_of(fused)), ExpertLayout::fused);
  EXPECT_EQ(descriptor::expert_layout_of(reader.names()), ExpertLayout::per_expert);
}

TEST(DecoderStateMap, WritesExpertByExpert) {
  const auto args = test::all_families().from_hf_folder(reference("qwen3moe_sparse_step2"));
  const std::vector<std::string> names = args->state_map(ExpertLayout::per_expert).input_names();
  const auto first = std::find(names.begin(), names.end(), "model.layers.1.mlp.experts.0.gate_proj.weight");
  ASSERT_LT(std::distance(first, names.end()), 100);
  EXPECT_THAT(
      std::vector<std::string>(first, first + 4),
      ElementsAre(
          "model.layers.1.mlp.experts.0.gate_proj.weight",
          "model.layers.1.mlp.experts.0.up_proj.weight",
          "model.layers.1.mlp.experts.0.down_proj.weight",
          "model.layers.1.mlp.experts.1.gate_proj.weight"));
}

TEST(DecoderStateMap, SplitsTablesOverTheVocabularysSegments) {
  const auto args = test::all_families().from_hf_folder(reference("llama_rope_llama3"));
  const int64_t vocabulary = args->vocab_size();
  descriptor::ModelOverrides overrides;
  overrides.split_vocab_size = {{"base", vocabulary - 10}, {"added", 10}};
  overrides.split_vocab_order = {"base", "added"};
  args->apply(overrides);
  const state::StateMap map = args->state_map(ExpertLayout::per_expert);
  const state::WeightReader reader(reference("llama_rope_llama3"));
  const state::NamedTensors parameters = mapped(map, read_all(reader));
  const Tensors by_name(parameters.begin(), parameters.end());
  EXPECT_TRUE(at::equal(
      by_name.at("model.embed_tokens.token_embedding.added.weight"),
      reader.tensor("model.embed_tokens.weight").narrow(0, vocabulary - 10, 10)));
  EXPECT_TRUE(at::equal(
      by_name.at("lm_head.lm_head.base.weight"), reader.tensor("lm_head.weight").narrow(0, 0, vocabulary - 10)));
  expect_same(mapped(map.inverse(), parameters), read_all(reader));
}

TEST(DecoderStateMap, TiedModelsHaveNoHeadOfTheirOwn) {
  const auto args = test::all_families().from_hf_folder(reference("qwen3_tied_v4config"));
  const auto names = args->state_map(ExpertLayout::per_expert).input_names();
  EXPECT_THAT(names, Contains("model.embed_tokens.weight"));
  EXPECT_THAT(names, Not(Contains("lm_head.weight")));
}

TEST(DecoderStateMap, MapsTheLargestFlavorWithoutData) {
  const auto args = qwen3_moe_family().flavors.at("235B-A22B")();
  const std::clock_t start = std::clock();
  const state::StateMap map = args->state_map(ExpertLayout::per_expert);
  const auto groups = map.groups();
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  constexpr size_t kOthers = 2 + 4 + 2 + 1;  // norms, projections, norms of queries and keys, router
  EXPECT_EQ(map.inputs().size(), 94 * (128 * 3 + kOthers) + 3);
  EXPECT_EQ(groups.size(), 94 * (3 + kOthers) + 3);
  EXPECT_LT(seconds, 1.0) << "0.1 measured, most of it for the model on meta";
}

}  // namespace
}  // namespace lehr::model

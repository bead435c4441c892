// Qwen3.5: its config.json, also that of a model of texts and images; its counts, tensors, documents and caches.
#include <gmock/gmock.h>

#include <algorithm>

#include "lehr/config/json.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/gemma4/family.h"
#include "lehr/model/qwen3_5/family.h"
#include "lehr/nn/model.h"
#include "lehr/state/map_stream.h"
#include "test/model/changed_config.h"
#include "test/model/state_layers.h"

namespace lehr::model {
namespace {

using test::Changes;
using ::testing::HasSubstr;

// The keys that a published file has, with the sizes of 27B; layer_types is left out.
constexpr const char* kPublished = R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056,
  "model_type": "qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true,
  "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
  "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17408, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
  "mtp_use_dedicated_embeddings": false, "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4,
  "rms_norm_eps": 1e-06, "use_cache": true, "vocab_size": 248320, "mamba_ssm_dtype": "float32",
  "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
  "rope_theta": 10000000, "partial_rotary_factor": 0.25}}, "tie_word_embeddings": false, "video_token_id": 248057,
  "vision_config": {"depth": 27, "model_type": "qwen3_5"}})";

Node text_config() {
  return descriptor::text_config_of(parse_json(kPublished, "config.json"));
}

std::string problem(const Changes& changes) {
  return test::problem_of_changed(qwen3_5_family(), text_config(), changes);
}

TEST(Qwen3_5, ReadsTheTextModelOfThePublishedFile) {
  const std::string own = to_json(qwen3_5_family().from_flavor("27B")->to_hf_config("bfloat16"));
  EXPECT_EQ(to_json(test::changed(qwen3_5_family(), text_config(), {})->to_hf_config("bfloat16")), own);
  EXPECT_EQ(
      to_json(test::changed(
                  qwen3_5_family(),
                  text_config(),
                  {{"full_attention_interval", "absent"},
                   {"linear_conv_kernel_dim", "absent"},
                   {"linear_key_head_dim", "absent"},
                   {"linear_value_head_dim", "absent"},
                   {"linear_num_key_heads", "absent"},
                   {"rms_norm_eps", "absent"},
                   {"attn_output_gate", "absent"},
                   {"rope_parameters", R"({"rope_theta": 10000000, "rope_type": "default"})"}})
                  ->to_hf_config("bfloat16")),
      own)
      << "absent keys have the values of transformers' class";
}

TEST(Qwen3_5, TakesWhatHoldsForTheWholeModelOfTextsAndImages) {
  Node config = parse_json(kPublished, "config.json");
  config.set("tie_word_embeddings", Node(true));
  EXPECT_TRUE(descriptor::text_config_of(config).at("tie_word_embeddings").as_bool());
  Node other = config.at("text_config");
  other.set("tie_word_embeddings", Node(false));
  config.set("text_config", other);
  EXPECT_TRUE(descriptor::text_config_of(config).at("tie_word_embeddings").as_bool()) << "as transformers ties them";
  const Node text = text_config();
  EXPECT_EQ(to_json(descriptor::text_config_of(text)), to_json(text));
}

// As Gemma 3 4B is published: the text_config leaves out what transformers' class has by default.
TEST(TextConfig, HasTheDefaultsOfGemma3) {
  const Node whole = parse_json(
      R"({"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "model_type": "gemma3",
  "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
  "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}, "vision_config": {}})",
      "config.json");
  const auto args = test::changed(gemma3_family(), descriptor::text_config_of(whole), {});
  EXPECT_EQ(args->eos_token_ids(), (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(
      args->get_nparams_and_flops(64).num_parameters,
      gemma3_family().from_flavor("4B")->get_nparams_and_flops(64).num_parameters);
  const Node written = args->to_hf_config("bfloat16"),
             own = gemma3_family().from_flavor("4B")->to_hf_config("bfloat16");
  for (const char* key :
       {"head_dim", "num_key_value_heads", "max_position_embeddings", "rope_parameters", "layer_types"}) {
    ASSERT_EQ(written.find(key) == nullptr, own.find(key) == nullptr) << key;
    EXPECT_TRUE(written.find(key) == nullptr || to_json(written.at(key)) == to_json(own.at(key))) << key;
  }
}

// Without architectures, vLLM and llama.cpp refuse the folders that Lehr writes. A published text_config has none.
TEST(TextConfig, NamesTheClassOfTheTextModelAndTheDtypeOfTheWhole) {
  for (const auto& [type, family] :
       {std::pair("qwen3_5", qwen3_5_family()),
        {"qwen3_5_moe", qwen3_5_moe_family()},
        {"gemma3", gemma3_family()},
        {"gemma4", gemma4_family()}}) {
    SCOPED_TRACE(type);
    const Node written = family.from_flavor("debugmodel")->to_hf_config("float32");
    Node part = written, whole = Node::make_table();
    part.set("architectures", Node());
    part.erase("torch_dtype");
    whole.set("architectures", parse_json(R"(["ForConditionalGeneration"])", "config.json"));
    whole.set("model_type", Node(type));
    whole.set("torch_dtype", Node("bfloat16"));
    whole.set("text_config", part);
    const Node text = descriptor::text_config_of(whole);
    EXPECT_EQ(to_json(text.at("architectures")), to_json(written.at("architectures")));
    EXPECT_EQ(text.at("torch_dtype").as_string(), "bfloat16");
    part.set("architectures", parse_json(R"(["Own"])", "config.json"));
    part.set("dtype", Node("float32"));
    whole.set("text_config", part);
    const Node own = descriptor::text_config_of(whole);
    EXPECT_EQ(to_json(own.at("architectures")), R"(["Own"])");
    EXPECT_EQ(own.at("dtype").as_string(), "float32");
    EXPECT_EQ(own.find("torch_dtype"), nullptr);
  }
}

TEST(Qwen3_5, RefusesByName) {
  EXPECT_THAT(problem({{"attn_output_gate", "false"}}), HasSubstr("attn_output_gate: expected true, found false"));
  EXPECT_THAT(problem({{"intermediate_size", "absent"}}), HasSubstr("'intermediate_size' is missing"));
  EXPECT_THAT(problem({{"mtp_num_hidden_layers", "2"}}), HasSubstr("mtp_num_hidden_layers: expected 0 or 1"));
  EXPECT_EQ(problem({{"mtp_num_hidden_layers", "null"}}), "accepted");
  EXPECT_THAT(
      problem({{"num_experts", "4"}, {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "8"}}),
      HasSubstr("num_experts_per_tok: models of type qwen3_5_text have no experts"));
  EXPECT_THAT(
      problem({{"linear_num_value_heads", "24"}}), HasSubstr("expected a multiple of linear_num_key_heads (16)"));
  const Node mixture = qwen3_5_moe_family().from_flavor("debugmodel")->to_hf_config("float32");
  EXPECT_THAT(
      test::problem_of_changed(qwen3_5_moe_family(), mixture, {{"shared_expert_intermediate_size", "absent"}}),
      HasSubstr("'shared_expert_intermediate_size' is missing"));
  EXPECT_EQ(test::problem_of_changed(qwen3_5_moe_family(), mixture, {{"mlp_only_layers", "[1]"}}), "accepted")
      << "transformers' class does not read the key";
}

// 256 numbers of a state, twice read and once written per token and value head in forward; twice as much in backward.
TEST(Qwen3_5, CountsParametersAndTheWorkOfStates) {
  const auto billions = [](const descriptor::ModelFamily& family, const std::string& flavor) {
    return static_cast<double>(family.from_flavor(flavor)->get_nparams_and_flops(64).num_parameters) / 1e9;
  };
  EXPECT_NEAR(billions(qwen3_5_family(), "9B"), 9, 0.1);
  EXPECT_NEAR(billions(qwen3_5_family(), "27B"), 27, 0.3);
  EXPECT_NEAR(billions(qwen3_5_moe_family(), "35B-A3B"), 35, 0.5);
  EXPECT_NEAR(billions(qwen3_5_moe_family(), "397B-A17B"), 397, 2);
  const auto counts = qwen3_5_family().from_flavor("debugmodel")->get_nparams_and_flops(128);
  const int64_t delta = 256 * (2 * 64 + 2 * 128 + 16) + (2 * 64 + 128) * 4 + 8 + 8 + 16 + 128 * 256;
  EXPECT_EQ(counts.layer_flops_per_token[0], 6 * (delta + 2 * 256 + 3 * 256 * 768) + 18 * 8 * 16 * 16);
  EXPECT_EQ(counts.kv_cache_per_token, (std::vector<int64_t>{0, 0, 0, 2 * 4 * 32, 0, 0, 0, 2 * 4 * 32}));
}

// The published tensors have the rows kind by kind: q of all key heads, then k, v and z; b of all value heads, then a.
TEST(Qwen3_5, OrdersRowsByKeyHead) {
  const auto args = qwen3_5_family().from_flavor("debugmodel");  // 4 key heads and 8 value heads of 16
  const state::StateMap map = args->state_map(descriptor::ExpertLayout::per_expert);
  const std::string layer = "model.layers.0.linear_attn.";
  const auto rows = [](int64_t first, int64_t count) {
    return at::arange(first, first + count).unsqueeze(1).expand({count, 256}).contiguous();
  };
  const std::vector<std::pair<std::string, at::Tensor>> stored{
      {layer + "in_proj_qkv.weight", rows(0, 256)},
      {layer + "in_proj_z.weight", rows(256, 128)},
      {layer + "in_proj_b.weight", rows(0, 8)},
      {layer + "in_proj_a.weight", rows(8, 8)}};
  const state::ValueSource source(stored);
  std::map<std::string, std::vector<int64_t>> found;
  state::stream(
      state::BoundMap(map.from({stored[0].first, stored[1].first, stored[2].first, stored[3].first}), source.specs()),
      source,
      [&](const state::MappedTensor& part) {
        const at::Tensor first = part.tensor.select(1, 0).to(at::kLong).contiguous();
        found[part.name].assign(first.data_ptr<int64_t>(), first.data_ptr<int64_t>() + first.numel());
      });
  std::vector<int64_t> qkvz, ba;
  for (int64_t head = 0; head < 4; ++head) {
    for (const auto& [begin, size] :
         {std::pair<int64_t, int64_t>{0, 16}, {64, 16}, {128, 32}, {256, 32}}) {  // q, k, v, z
      for (int64_t row = 0; row < size; ++row) {
        qkvz.push_back(begin + head * size + row);
      }
    }
    for (const int64_t row : {2 * head, 2 * head + 1, 8 + 2 * head, 8 + 2 * head + 1}) {
      ba.push_back(row);
    }
  }
  EXPECT_EQ(found[layer + "in_proj_qkvz.weight"], qkvz);
  EXPECT_EQ(found[layer + "in_proj_ba.weight"], ba);
}

TEST(Qwen3_5, ComputesPackedDocumentsLikeSeparateOnes) {
  test::expect_packed_documents_equal_separate_ones(*test::model_with_states(qwen3_5_family()));
  test::expect_packed_documents_equal_separate_ones(*test::model_with_states(qwen3_5_moe_family()));
}

TEST(Qwen3_5, DecodesFromItsCachesLikeOneForward) {
  test::expect_decoding_equals_one_forward(*test::model_with_states(qwen3_5_family()));
  test::expect_decoding_equals_one_forward(*test::model_with_states(qwen3_5_moe_family()));
}

}  // namespace
}  // namespace lehr::model

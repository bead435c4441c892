// Models composed of sub-blocks of several models: their specification, their weights, and the bytes that are read.
#include "lehr/pretrained/replacements.h"

#include <gmock/gmock.h>

#include <mutex>

#include "lehr/config/json.h"
#include "lehr/pretrained/convert.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/pretrained/model_parts.h"
#include "test/train/sharded_support.h"
#include "test/train/written_model.h"

namespace lehr::pretrained {
namespace {

namespace fs = std::filesystem;
using descriptor::AttentionSubblock;
using descriptor::FFNSubblock;
using model::test::LayerShape;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using train::testing::error_of;
using train::testing::families;
using train::testing::Folder;
using train::testing::write_model;

const std::vector<LayerShape> kTeacher{{4, 32}, {4, 32}, {4, 32}};
const std::vector<LayerShape> kFewHeads{{2, 32}, {2, 32}, {1, 32}};
const std::vector<LayerShape> kNarrow{{4, 8}, {4, 0}, {4, 24}};

// A teacher, a child with fewer KV heads (as a sub-block checkpoint) and a child with narrower FFNs.
class Replacements : public ::testing::Test {
 protected:
  Replacements() {
    write_model(at("teacher"), "qwen3", kTeacher, 1);
    write_model(at("heads_whole"), "qwen3", kFewHeads, 2);
    convert_checkpoint({.model = at("heads_whole"), .output = at("heads"), .subblocks = true}, families());
    write_model(at("narrow"), "qwen3", kNarrow, 3);
  }
  fs::path at(const std::string& name) const { return folder_.path() / name; }
  std::vector<Replacement> read(const std::string& json) const {
    write_file_atomically(at("swap.json"), json);
    return read_replacements(at("swap.json"));
  }
  std::string problem(const std::string& json) const {
    return error_of([&] { ModelParts(at("teacher"), read(json), families()); });
  }

 private:
  Folder folder_;
};

// Layer 0: attention of `heads`. Layer 1: no attention, and the FFN of layer 2 of `narrow`. Layer 2: the teacher's.
constexpr const char* kSwap = R"([
  {"layer": 0, "attention": {"model": "heads"}},
  {"layer": 1, "attention": {"no_op": true}, "ffn": {"model": "narrow", "layer": 2}}
])";

TEST_F(Replacements, ComposeAModel) {
  convert_checkpoint({.model = at("teacher"), .output = at("child"), .replacements = read(kSwap)}, families());
  const auto args = families().from_hf_folder(at("child"));
  EXPECT_TRUE(args->is_heterogeneous());
  const auto blocks = args->block_configs();
  ASSERT_THAT(blocks, SizeIs(3));
  EXPECT_EQ(blocks[0], (descriptor::BlockConfig{AttentionSubblock{2}, FFNSubblock{32}}));
  EXPECT_EQ(blocks[1], (descriptor::BlockConfig{descriptor::NoOpSubblock{}, FFNSubblock{24}}));
  EXPECT_EQ(blocks[2], (descriptor::BlockConfig{AttentionSubblock{4}, FFNSubblock{32}}));

  const state::WeightReader child(at("child")), teacher(at("teacher")), heads(at("heads")), narrow(at("narrow"));
  for (const std::string& name : child.names()) {
    const bool from_heads =
        name.starts_with("model.layers.0.self_attn.") || name == "model.layers.0.input_layernorm.weight";
    const bool from_narrow = name.starts_with("model.layers.1.");
    std::string original = name;
    if (from_narrow) {
      original.replace(0, std::string("model.layers.1.").size(), "model.layers.2.");
    }
    const state::WeightReader& source = from_heads ? heads : from_narrow ? narrow : teacher;
    EXPECT_TRUE(at::equal(child.tensor(name), source.tensor(original))) << name;
  }
  EXPECT_FALSE(child.has("model.layers.1.input_layernorm.weight"));
  const auto model = ModelFolder::open(at("child"), families()).load(at::kCPU, at::kDouble);
  EXPECT_TRUE(model->forward({.input_ids = at::arange(5).unsqueeze(0)}).hidden_states.isfinite().all().item<bool>());
}

// Replaces all sub-blocks of the teacher by the teacher's own, by files of its sub-blocks: the same model, byte for
// byte.
TEST_F(Replacements, ByTheSameModelChangeNothing) {
  std::string json;
  for (int layer = 0; layer < 3; ++layer) {
    json += fmt::format(
        R"({}{{"layer": {}, "attention": {{"model": "teacher"}}, "ffn": {{"model": "{}"}}}})",
        layer == 0 ? "" : ", ",
        layer,
        at("teacher").string());
  }
  convert_checkpoint(
      {.model = at("teacher"), .output = at("same"), .replacements = read("[" + json + "]")}, families());
  EXPECT_EQ(read_file(at("same/model.safetensors")), read_file(at("teacher/model.safetensors")));
  EXPECT_EQ(
      families().from_hf_folder(at("same"))->block_configs(),
      families().from_hf_folder(at("teacher"))->block_configs());
}

TEST_F(Replacements, AreReadFromTheChosenSolutionOfAList) {
  const auto solution = [&](int64_t layer) {
    return fmt::format(R"({{"chosen_replacements": [{{"layer": {}, "attention": {{"no_op": true}}}}]}})", layer);
  };
  write_file_atomically(at("solutions.json"), "[" + solution(0) + ", " + solution(2) + "]");
  const std::string file = at("solutions.json").string();
  EXPECT_EQ(read_replacements(file + "#0").front().layer, 0);
  EXPECT_EQ(read_replacements(file + "#1").front().layer, 2);
  EXPECT_THAT(error_of([&] { read_replacements(file); }), HasSubstr("holds 2 solutions; select one, from"));
  EXPECT_THAT(error_of([&] { read_replacements(file + "#2"); }), HasSubstr("has 2 solutions, counted from 0"));
  EXPECT_THAT(error_of([&] { read_replacements(file + "#x"); }), HasSubstr("expected the number of a solution"));
  write_file_atomically(at("solutions.json"), "[" + solution(1) + "]");
  EXPECT_EQ(read_replacements(file).front().layer, 1);
  write_file_atomically(at("one.json"), solution(1));
  EXPECT_THAT(error_of([&] { read_replacements(at("one.json").string() + "#0"); }), HasSubstr("no list of solutions"));
}

TEST_F(Replacements, AreReadFromPuzzletronsSolutions) {
  const auto own = read(kSwap);
  const std::string heads = at("heads").string(), narrow = at("narrow").string();
  const auto theirs = read(fmt::format(
      R"({{"chosen_replacements": [
        {{"parent_layer_indices": [1], "weight_paths": ["{1}/subblocks_safetensors/block_2_ffn.safetensors"],
          "child_block_configs": [{{"attention": {{"no_op": true}}, "ffn": {{"intermediate_size": 24}}}}]}},
        {{"parent_layer_indices": [0],
          "weight_paths": ["{0}/subblocks_safetensors/block_0_attention.safetensors",
                           "teacher/subblocks_safetensors/block_0_ffn.safetensors"],
          "child_block_configs": [{{"attention": {{"num_key_value_heads": 2}}, "ffn": {{"intermediate_size": 32}}}}]}}
      ], "total_value": 1.5}})",
      heads,
      narrow));
  ASSERT_THAT(theirs, SizeIs(4));
  const auto find = [&](int64_t layer, Subblock subblock) {
    return *std::find_if(
        theirs.begin(), theirs.end(), [&](const auto& one) { return one.layer == layer && one.subblock == subblock; });
  };
  for (const Replacement& one : own) {
    const Replacement same = find(one.layer, one.subblock);
    ASSERT_EQ(same.origin.has_value(), one.origin.has_value());
    if (one.origin) {
      EXPECT_EQ(same.origin->model, one.origin->model);
      EXPECT_EQ(same.origin->layer, one.origin->layer);
    }
  }
  EXPECT_EQ(find(0, Subblock::ffn).origin->model, at("teacher"));
}

// The attention of layer 1 of `heads` in layers 0 and 2, and the FFN of layer 2 of `narrow` in all layers.
TEST_F(Replacements, MayUseOneSubblockSeveralTimes) {
  const auto swap = read(R"([
    {"layer": 0, "attention": {"model": "heads", "layer": 1}, "ffn": {"model": "narrow", "layer": 2}},
    {"layer": 1, "ffn": {"model": "narrow", "layer": 2}},
    {"layer": 2, "attention": {"model": "heads", "layer": 1}, "ffn": {"model": "narrow", "layer": 2}}
  ])");
  convert_checkpoint({.model = at("teacher"), .output = at("child"), .replacements = swap}, families());
  const state::WeightReader child(at("child")), heads(at("heads")), narrow(at("narrow"));
  for (const char* layer : {"0", "2"}) {
    EXPECT_TRUE(at::equal(
        child.tensor(fmt::format("model.layers.{}.self_attn.k_proj.weight", layer)),
        heads.tensor("model.layers.1.self_attn.k_proj.weight")));
  }
  for (const char* layer : {"0", "1", "2"}) {
    EXPECT_TRUE(at::equal(
        child.tensor(fmt::format("model.layers.{}.mlp.up_proj.weight", layer)),
        narrow.tensor("model.layers.2.mlp.up_proj.weight")));
  }
  const ModelParts parts(at("teacher"), swap, families());
  const auto model = parts.args().build({});
  nn::materialize(*model, at::kCPU, at::kFloat);
  parts.load(*model);
  const auto written = ModelFolder::open(at("child"), families()).load(at::kCPU, at::kFloat);
  const auto expected = nn::named_parameters(*written);
  const auto loaded = nn::named_parameters(*model);
  ASSERT_EQ(loaded.size(), expected.size());
  for (size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_TRUE(at::equal(loaded[i].parameter->value(), expected[i].parameter->value())) << loaded[i].name;
  }
}

TEST_F(Replacements, MustMatchPuzzletronsBlockConfigs) {
  write_model(at("experts"), "qwen3_moe", {{4, 8, 6, 2}, {4, 8, 6, 2}}, 4);
  const auto entry = [&](const std::string& attention, const std::string& ffn, const std::string& origin) {
    return fmt::format(
        R"([{{"parent_layer_indices": [0], "child_block_configs": [{{"attention": {}, "ffn": {}}}],
             "weight_paths": ["{}/subblocks_safetensors/block_1_attention.safetensors",
                              "{}/subblocks_safetensors/block_1_ffn.safetensors"]}}])",
        attention,
        ffn,
        origin,
        origin);
  };
  const auto check = [&](const std::string& json) {
    const std::string teacher = json.find("experts/") != std::string::npos ? "experts" : "teacher";
    ModelParts(at(teacher), read(json), families());
  };
  const auto problem = [&](const std::string& json) { return error_of([&] { check(json); }); };
  // `heads` has one file per sub-block, `heads_whole` one file in all: a path identifies the model and the layer.
  for (const char* origin : {"heads", "heads_whole"}) {
    check(entry(R"({"num_key_value_heads": 2})", R"({"intermediate_size": 32})", origin));
    check(entry(R"({"n_heads_in_group": 4})", R"({"intermediate_size": 32})", origin));  // Nemotron-NAS: of 8 heads
  }
  EXPECT_THAT(
      problem(entry(R"({"num_key_value_heads": 4})", R"({"intermediate_size": 32})", "heads")),
      AllOf(
          HasSubstr(
              "swap.json: [0].child_block_configs[0].attention.num_key_value_heads: expected 2, as in layer 1 of "),
          HasSubstr("heads, found 4")));
  EXPECT_THAT(
      problem(entry(R"({"num_key_value_heads": 2})", R"({"intermediate_size": 24})", "heads")),
      HasSubstr("[0].child_block_configs[0].ffn.intermediate_size: expected 32"));
  // Layer 1 of `narrow` has no FFN.
  EXPECT_THAT(
      problem(entry(R"({"num_key_value_heads": 4})", R"({"intermediate_size": 24})", "narrow")),
      HasSubstr("[0].child_block_configs[0].ffn.no_op: expected true, as in layer 1 of "));
  EXPECT_THAT(
      problem(entry(R"({"num_key_value_heads": 2, "colour": 1})", R"({"intermediate_size": 32})", "heads")),
      HasSubstr("[0].child_block_configs[0].attention: 'colour' is not known"));
  EXPECT_THAT(
      problem(entry(R"({"num_key_value_heads": 2})", R"({"intermediate_size": 32}, "mamba": {})", "heads")),
      HasSubstr("[0].child_block_configs[0]: 'mamba' is not known"));
  const auto experts = [&](const char* number, const char* shared) {
    return entry(
        R"({"num_key_value_heads": 4})",
        fmt::format(
            R"({{"moe": {{"num_local_experts": {}, "num_experts_per_tok": 2, "expert_intermediate_dim": 8,
                          "shared_expert_intermediate_dim": {}}}}})",
            number,
            shared),
        "experts");
  };
  check(experts("6", "0"));
  check(experts("6", "8192"));  // puzzletron always writes this
  EXPECT_THAT(
      problem(experts("5", "8192")),
      AllOf(HasSubstr("ffn.moe.num_local_experts: expected 6, as in layer 1 of "), HasSubstr("experts, found 5")));
  EXPECT_THAT(problem(experts("6", "16")), HasSubstr("shared_expert_intermediate_dim: expected 0"));
}

TEST_F(Replacements, SupportEveryLayout) {
  write_model(at("experts"), "qwen3_moe", {{4, 8, 6, 2}, {4, 8, 6, 2}}, 4);
  write_model(at("fewer"), "qwen3_moe", {{4, 8, 3, 2}, {4, 32}}, 5);
  convert_checkpoint(
      {.model = at("fewer"), .output = at("fewer_fused"), .layout = descriptor::ExpertLayout::fused}, families());
  const auto swap = read(
      R"([{"layer": 1, "ffn": {"model": "fewer_fused", "layer": 0}}, {"layer": 0, "ffn": {"model": "fewer", "layer": 1}}])");
  convert_checkpoint(
      {.model = at("experts"), .output = at("child"), .subblocks = true, .replacements = swap}, families());
  const state::WeightReader child(at("child")), fewer(at("fewer"));
  EXPECT_TRUE(at::equal(
      child.tensor("model.layers.1.mlp.experts.2.down_proj.weight"),
      fewer.tensor("model.layers.0.mlp.experts.2.down_proj.weight")));
  EXPECT_FALSE(child.has("model.layers.1.mlp.experts.3.down_proj.weight"));
  EXPECT_TRUE(at::equal(
      child.tensor("model.layers.0.mlp.gate_proj.weight"), fewer.tensor("model.layers.1.mlp.gate_proj.weight")));
  EXPECT_TRUE(fs::exists(at("child/subblocks_safetensors/block_1_ffn.safetensors")));
}

// Counts the elements that are read.
class Counted : public ModelParts {
 public:
  using ModelParts::ModelParts;
  at::Tensor read(const std::string& name, const Box& box) const override {
    count(box);
    return ModelParts::read(name, box);
  }
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override {
    count(box);
    ModelParts::copy(name, box, target);
  }
  int64_t elements() const { return elements_; }

 private:
  void count(const Box& box) const {
    const std::lock_guard lock(mutex_);
    int64_t size = 1;
    for (const Range& range : box) {
      size *= range.end - range.begin;
    }
    elements_ += size;
  }
  mutable std::mutex mutex_;
  mutable int64_t elements_ = 0;
};

// Four ranks that together hold the model once read every element of the source folders once, and hold the boxes of the
// model that `convert` writes.
TEST_F(Replacements, AreLoadedByRanksThatReadTheirOwnBoxesOnly) {
  const auto swap = read(kSwap);
  convert_checkpoint({.model = at("teacher"), .output = at("child"), .replacements = swap}, families());
  std::map<std::string, at::Tensor> whole;
  const auto child = ModelFolder::open(at("child"), families()).load(at::kCPU, at::kFloat);
  for (const auto& [name, parameter] : nn::named_parameters(*child)) {
    whole[name] = parameter->value();
  }
  const Counted parts(at("teacher"), swap, families());
  const mesh::DeviceMeshParameters four{.data_parallel_shard = 4};
  std::mutex mutex;
  int64_t held = 0;
  mesh::run_ranks(4, [&](mesh::Transport& transport) {
    const mesh::DistributedContext context(four, transport);
    const auto model = parts.args().build({});
    train::testing::lay_out(*model, context);
    nn::materialize(*model, at::kCPU, at::kFloat);
    parts.load(*model);
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      held += parameter->value().numel();
      at::Tensor expected = whole.at(name);
      const Box box = parameter->box();
      for (size_t dim = 0; dim < box.size(); ++dim) {
        expected = expected.narrow(static_cast<int64_t>(dim), box[dim].begin, box[dim].end - box[dim].begin);
      }
      EXPECT_TRUE(at::equal(parameter->value(), expected)) << name;
    }
  });
  EXPECT_EQ(parts.elements(), held);
  EXPECT_EQ(held, nn::count_parameters(*child));
}

TEST_F(Replacements, AreLoadedByStages) {
  const ModelParts parts(at("teacher"), read(kSwap), families());
  const auto whole = parts.args().build({});
  nn::materialize(*whole, at::kCPU, at::kFloat);
  parts.load(*whole);
  std::map<std::string, at::Tensor> expected;
  for (const auto& [name, parameter] : nn::named_parameters(*whole)) {
    expected[name] = parameter->value();
  }
  size_t found = 0;
  for (int64_t stage = 0; stage < 3; ++stage) {
    const auto part = parts.args().build({.stage = {.current_stage = stage, .num_stages = 3}});
    nn::materialize(*part, at::kCPU, at::kFloat);
    parts.load(*part);
    for (const auto& [name, parameter] : nn::named_parameters(*part)) {
      EXPECT_TRUE(at::equal(parameter->value(), expected.at(name))) << name;
      ++found;
    }
  }
  EXPECT_EQ(found, expected.size());
}

TEST_F(Replacements, RefuseInvalidSpecifications) {
  const auto refused = [&](const std::string& json) { return error_of([&] { read(json); }); };
  EXPECT_THAT(
      refused(R"([{"layer": 0, "atention": {"no_op": true}}])"),
      HasSubstr("swap.json: [0]: 'atention' is not known, did you mean 'attention'"));
  EXPECT_THAT(refused(R"([{"layer": 0}])"), HasSubstr("[0]: expected \"attention\", \"ffn\" or both, found neither"));
  EXPECT_THAT(
      refused(R"([{"layer": -1, "ffn": {"no_op": true}}])"), HasSubstr("[0].layer: expected the index of a layer"));
  for (const char* half : {"{}", R"({"no_op": false})", R"({"no_op": true, "model": "x"})", R"({"layer": 1})"}) {
    EXPECT_THAT(
        refused(fmt::format(R"([{{"layer": 0, "ffn": {}}}])", half)),
        HasSubstr(R"([0].ffn: expected {"model": DIR}, {"model": DIR, "layer": NUMBER} or {"no_op": true})"));
  }
  EXPECT_THAT(
      refused(R"([{"layer": 0, "ffn": {"no_op": true}}, {"layer": 0, "ffn": {"model": "x"}}])"),
      HasSubstr("[1]: the ffn of layer 0 is replaced twice"));
  EXPECT_THAT(
      refused(R"([{"parent_layer_indices": [0], "child_block_configs": [{"attention": {}, "ffn": {"no_op": true}}],
                   "weight_paths": ["x/model.safetensors"]}])"),
      HasSubstr("[0].weight_paths[0]: expected DIR/subblocks_safetensors/block_N_attention.safetensors"));
  EXPECT_THAT(
      refused(R"([{"parent_layer_indices": [0], "child_block_configs": [{"attention": {}, "ffn": {"no_op": true}}],
                   "weight_paths": []}])"),
      HasSubstr("[0].weight_paths: expected a file for attention, according to its block config"));
  EXPECT_THAT(
      refused(R"([{"parent_layer_indices": [0, 1], "child_block_configs": [], "weight_paths": []}])"),
      HasSubstr("[0].parent_layer_indices: expected one layer, found 2; merging layers is not supported"));
}

TEST_F(Replacements, RefuseEmptyAndDuplicateSpecifications) {
  EXPECT_THAT(error_of([&] { read("[]"); }), HasSubstr("swap.json: expected replacements, found an empty list"));
  EXPECT_THAT(
      error_of([&] { read(R"({"chosen_replacements": []})"); }),
      HasSubstr("swap.json: chosen_replacements: expected replacements, found an empty list"));
  EXPECT_THAT(
      error_of([&] { read(R"([{"layer": 0, "ffn": {"no_op": true}, "ffn": {"model": "x"}}])"); }),
      HasSubstr("swap.json: [0].ffn: duplicate key"));
}

TEST_F(Replacements, RefuseSubblocksThatDoNotFit) {
  EXPECT_THAT(
      problem(R"([{"layer": 3, "ffn": {"no_op": true}}])"),
      AllOf(HasSubstr("swap.json: [0].ffn: "), HasSubstr("teacher has layers 0 to 2, and no layer 3")));
  EXPECT_THAT(
      problem(R"([{"layer": 0, "ffn": {"model": "narrow", "layer": 9}}])"),
      HasSubstr("narrow has layers 0 to 2, and no layer 9"));
  EXPECT_THAT(problem(R"([{"layer": 0, "ffn": {"model": "nowhere"}}])"), HasSubstr("nowhere"));
  write_model(at("llama"), "llama", kTeacher, 1);
  EXPECT_THAT(
      problem(R"([{"layer": 0, "ffn": {"model": "llama"}}])"),
      HasSubstr("[0].ffn: expected a model of type qwen3, found llama in "));
  // The same weights with another base of rotary frequencies would be a different attention.
  fs::copy(at("narrow"), at("turned"), fs::copy_options::recursive);
  Node config = parse_json_file(at("turned/config.json"));
  config.set("rope_theta", Node(12345.0));
  write_file_atomically(at("turned/config.json"), to_json(config));
  EXPECT_THAT(
      problem(R"([{"layer": 0, "attention": {"model": "turned"}}])"),
      HasSubstr("turned has rope_theta = 12345.0, but the target model has 100.0"));
  // A folder whose weights contradict its config.json is refused, whichever of its sub-blocks is used.
  config.set("rope_theta", Node(100.0));
  config.set("block_configs", parse_json_file(at("heads/config.json")).at("block_configs"));
  write_file_atomically(at("turned/config.json"), to_json(config));
  EXPECT_THAT(
      problem(R"([{"layer": 2, "ffn": {"model": "turned"}}])"),
      HasSubstr("turned: the checkpoint lacks model.layers.1.mlp."));
}

// The window and the positions of a layer are not in its weights.
TEST_F(Replacements, KeepTheKindOfTheLayer) {
  for (const char* type : {"smollm3", "gemma3_text"}) {
    const std::string own = at(type).string(), other = own + "_other";
    write_model(own, type, kTeacher, 1);
    write_model(other, type, kTeacher, 2);
    const auto swap = [&](const char* subblock, int64_t from) {
      const auto list = fmt::format(R"([{{"layer": 0, "{}": {{"model": "{}", "layer": {}}}}}])", subblock, other, from);
      ModelParts(own, read(list), families());
    };
    EXPECT_THAT(
        error_of([&] { swap("attention", 1); }),
        AllOf(
            HasSubstr("[0].attention: layer 1 of "),
            HasSubstr("_attention\", but layer 0 of the target model has \""),
            HasSubstr("its attention would compute something else there")));
    swap("attention", 2);
    swap("ffn", 1);
  }
}

TEST_F(Replacements, OfAnotherTypeNeedATypeForAll) {
  convert_checkpoint({.model = at("narrow"), .output = at("half"), .dtype = at::kBFloat16}, families());
  const auto swap = read(R"([{"layer": 0, "ffn": {"model": "half"}}])");
  EXPECT_THAT(
      error_of([&] {
        convert_checkpoint({.model = at("teacher"), .output = at("child"), .replacements = swap}, families());
      }),
      AllOf(HasSubstr("half: model.layers.0."), HasSubstr("has dtype BF16, which no tensor of")));
  convert_checkpoint(
      {.model = at("teacher"), .output = at("child"), .dtype = at::kFloat, .replacements = swap}, families());
  EXPECT_TRUE(at::equal(
      state::WeightReader(at("child")).tensor("model.layers.0.mlp.up_proj.weight"),
      state::WeightReader(at("half")).tensor("model.layers.0.mlp.up_proj.weight").to(at::kFloat)));
}

}  // namespace
}  // namespace lehr::pretrained

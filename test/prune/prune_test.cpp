// Children as model folders: their parents' layouts, their contents, and their readers.
#include "lehr/prune/prune.h"

#include <gmock/gmock.h>

#include <mutex>

#include "lehr/config/json.h"
#include "lehr/pretrained/convert.h"
#include "lehr/prune/pruned_model.h"
#include "test/prune/support.h"
#include "test/train/sharded_support.h"

namespace lehr::prune {
namespace {

namespace fs = std::filesystem;
using model::test::kMixtures;
using pretrained::convert_checkpoint;
using ::testing::AllOf;
using testing::blocks_of;
using testing::error_of;
using testing::families;
using testing::Folder;
using ::testing::HasSubstr;
using testing::prune_to;

TEST(PruneTarget, AChildThatIsStoppedLeavesNothing) {
  const fs::path parent = fs::path(LEHR_SOURCE_DIR) / "test/data/reference/qwen3_tied_v4config";
  const Folder folder;
  int written = 0;
  const auto stop = [&] {
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "the folder is being written";
    require(++written < 3, "stopped");
  };
  const PruneTarget target{.model = parent, .output = folder.path() / "child", .before_each = stop};
  const Pruning all{.layers = std::vector<LayerKeeps>(blocks_of(parent).size())};
  EXPECT_THAT(error_of([&] { write_pruned(target, all, families()); }), HasSubstr("stopped"));
  const pretrained::ConvertOptions copy{
      .model = parent, .output = folder.path() / "copy", .before_each = [] { fail("stopped"); }};
  EXPECT_THAT(error_of([&] { convert_checkpoint(copy, families()); }), HasSubstr("stopped"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// A norm over all heads has no exact cut.
TEST(PruneReport, NamesLayersWhoseKeysGetAnotherScale) {
  for (const std::string family : {"olmo2", "qwen3"}) {
    const Folder folder;
    const fs::path parent = folder.path() / "parent", child = folder.path() / "child";
    train::testing::write_model(parent, family, {{4, 32}, {4, 32}, {2, 32}}, /*seed=*/1);
    const Pruning pruning = choose({.kv_heads = 2, .by = By::first}, blocks_of(parent), nullptr);
    const PruneReport report = write_pruned({.model = parent, .output = child}, pruning, families());
    const auto wanted = family == "olmo2" ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{};
    EXPECT_EQ(report.rescaled_keys, wanted) << family;
  }
}

class OfEqualSize : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    References,
    OfEqualSize,
    ::testing::Values(
        "qwen3_tied_v4config",
        "qwen3_seqcls",
        "qwen3moe_sparse_step2",
        "llama_rope_llama3",
        "glm4_moe_air",
        "minimax_m2_published",
        "deepseek_v3_one_group"));

TEST_P(OfEqualSize, IsTheParentByteForByte) {
  const fs::path parent = fs::path(LEHR_SOURCE_DIR) / "test/data/reference" / GetParam();
  PruneOptions options{.by = By::random, .scale_pruned_weights = true};
  for (const descriptor::BlockConfig& block : blocks_of(parent)) {
    options.kv_heads = std::get<descriptor::AttentionSubblock>(block.attention).num_key_value_heads;
    if (const auto* ffn = std::get_if<descriptor::FFNSubblock>(&block.ffn)) {
      options.ffn_width = ffn->intermediate_size;
    }
    if (const auto* moe = std::get_if<descriptor::MoESubblock>(&block.ffn)) {
      options.experts = moe->num_local_experts;
      options.expert_width = moe->expert_intermediate_dim;
    }
  }
  const Folder folder;
  for (const bool average : {false, true}) {
    options.average_kv = average;
    const fs::path child = folder.path() / (average ? "averaged" : "kept");
    const Pruning pruning = prune_to(parent, child, options);
    EXPECT_EQ(pruning.layers[0].kv_heads.empty(), average || options.kv_heads == 1);
    for (const char* file : {"model.safetensors", "config.json"}) {
      EXPECT_EQ(read_file(child / file), read_file(parent / file)) << file;
    }
  }
}

// All options combined: attention, widths, experts, channels of experts, dropped sub-blocks, unchanged layers.
const PruneOptions kEverything{
    .ffn_width = 16,
    .kv_heads = 2,
    .experts = 4,
    .expert_width = 5,
    .drop_attention_layers = {3},
    .drop_ffn_layers = {4},
    .by = By::random,
    .seed = 11,
    .scale_pruned_weights = true};

class PrunedFolders : public testing::ModelsInFolders {};

TEST_F(PrunedFolders, AreTheSameForEveryLayoutOfTheParent) {
  write("parent", "qwen3_moe", kMixtures);
  prune_to(at("parent"), at("child"), kEverything);
  const auto blocks = blocks_of(at("child"));
  EXPECT_EQ(blocks[0], (descriptor::BlockConfig{descriptor::AttentionSubblock{2}, descriptor::MoESubblock{4, 2, 5}}));
  EXPECT_EQ(blocks[1], (descriptor::BlockConfig{descriptor::AttentionSubblock{2}, descriptor::FFNSubblock{16}}));
  EXPECT_EQ(blocks[2], (descriptor::BlockConfig{descriptor::NoOpSubblock{}, descriptor::MoESubblock{4, 3, 5}}));
  EXPECT_EQ(blocks[3], (descriptor::BlockConfig{descriptor::NoOpSubblock{}, descriptor::NoOpSubblock{}}));
  EXPECT_EQ(blocks[4], (descriptor::BlockConfig{descriptor::AttentionSubblock{2}, descriptor::NoOpSubblock{}}));

  const std::vector<std::pair<std::string, pretrained::ConvertOptions>> others{
      {"sharded", {.max_shard_bytes = 5000}},
      {"subblocks", {.subblocks = true}},
      {"fused", {.layout = descriptor::ExpertLayout::fused}}};
  for (auto [name, options] : others) {
    options.model = at("parent");
    options.output = at(name);
    convert_checkpoint(options, families());
    prune_to(at(name), at(name + "_child"), kEverything);
    convert_checkpoint(
        {.model = at(name + "_child"), .output = at(name + "_back"), .layout = descriptor::ExpertLayout::per_expert},
        families());
    EXPECT_EQ(read_file(at(name + "_back/model.safetensors")), read_file(at("child/model.safetensors"))) << name;
    EXPECT_EQ(read_file(at(name + "_back/config.json")), read_file(at("child/config.json"))) << name;
  }
  EXPECT_EQ(
      descriptor::expert_layout_of(state::WeightReader(at("fused_child")).names()), descriptor::ExpertLayout::fused)
      << "as the parent";
}

TEST_F(PrunedFolders, MayBeSubblockCheckpointsAndKeepTheParentsTypes) {
  write("parent", "qwen3", {{4, 32}, {4, 32}});
  convert_checkpoint({.model = at("parent"), .output = at("half"), .dtype = at::kBFloat16}, families());
  write_file_atomically(at("half/tokenizer.json"), "{}");
  const Pruning pruning =
      choose({.ffn_width = 8, .kv_heads = 1, .by = By::first, .average_kv = true}, blocks_of(at("half")));
  write_pruned({.model = at("half"), .output = at("child"), .subblocks = true}, pruning, families());
  EXPECT_TRUE(fs::exists(at("child/subblocks_safetensors/block_1_ffn.safetensors")));
  EXPECT_TRUE(fs::exists(at("child/tokenizer.json")));
  const state::WeightReader child(at("child")), half(at("half"));
  for (const std::string& name : child.names()) {
    EXPECT_EQ(child.info(name).dtype, state::DType::kBF16) << name;
  }
  const std::string key = "model.layers.0.self_attn.k_proj.weight";
  EXPECT_TRUE(at::equal(
      child.tensor(key),
      half.tensor(key).to(at::kDouble).view({4, model::test::kHeadDim, -1}).mean(0).to(at::kBFloat16)));
}

// Then transformers, which does not support block configs, can load the child.
TEST_F(PrunedFolders, HaveAnOrdinaryConfigIfAllLayersAreAlike) {
  write("parent", "qwen3", {{4, 32}, {4, 32}});
  prune_to(at("parent"), at("child"), {.ffn_width = 12, .kv_heads = 2, .by = By::first});
  const Node config = parse_json_file(at("child/config.json"));
  EXPECT_EQ(config.find("block_configs"), nullptr);
  EXPECT_EQ(config.at("intermediate_size").as_int(), 12);
  EXPECT_EQ(config.at("num_key_value_heads").as_int(), 2);
  const descriptor::BlockConfig block{descriptor::AttentionSubblock{2}, descriptor::FFNSubblock{12}};
  EXPECT_EQ(blocks_of(at("child")), std::vector(2, block));
  EXPECT_FALSE(families().from_hf_folder(at("child"))->is_heterogeneous());
  // All other keys are the parent's.
  Node others = config, before = parse_json_file(at("parent/config.json"));
  for (const char* key : {"intermediate_size", "num_key_value_heads", "block_configs"}) {
    others.erase(key);
    before.erase(key);
  }
  EXPECT_EQ(to_json(others), to_json(before));
  // Makes the layers different, and then alike again.
  prune_to(at("child"), at("apart"), {.ffn_width = 6, .layers = {{0}}, .by = By::first});
  EXPECT_NE(parse_json_file(at("apart/config.json")).find("block_configs"), nullptr);
  EXPECT_EQ(parse_json_file(at("apart/config.json")).at("intermediate_size").as_int(), 12);
  prune_to(at("apart"), at("alike"), {.ffn_width = 6, .by = By::first});
  EXPECT_EQ(parse_json_file(at("alike/config.json")).find("block_configs"), nullptr);
  EXPECT_EQ(parse_json_file(at("alike/config.json")).at("intermediate_size").as_int(), 6);
  EXPECT_TRUE(testing::logits_of(at("alike")).isfinite().all().item<bool>());
  // The same with replaced sub-blocks of another model.
  std::vector<pretrained::Replacement> replacements;
  for (const int64_t layer : {0, 1}) {
    replacements.push_back({layer, pretrained::Subblock::ffn, pretrained::SubblockOrigin{at("alike"), layer}});
  }
  convert_checkpoint({.model = at("parent"), .output = at("replaced"), .replacements = replacements}, families());
  EXPECT_EQ(parse_json_file(at("replaced/config.json")).find("block_configs"), nullptr);
  EXPECT_EQ(parse_json_file(at("replaced/config.json")).at("intermediate_size").as_int(), 6);
  EXPECT_EQ(
      blocks_of(at("replaced")),
      std::vector(2, descriptor::BlockConfig{descriptor::AttentionSubblock{4}, descriptor::FFNSubblock{6}}));
}

TEST_F(PrunedFolders, OfMoEModelsHaveAnOrdinaryConfigToo) {
  write("parent", "qwen3_moe", {{4, 8, 6, 2}, {4, 8, 6, 2}});
  for (const bool as_transformers_5 : {false, true}) {
    const std::string name = as_transformers_5 ? "child5" : "child4";
    const char* key = as_transformers_5 ? "num_local_experts" : "num_experts";
    if (as_transformers_5) {
      Node config = parse_json_file(at("parent/config.json"));
      config.set(key, config.at("num_experts"));
      config.erase("num_experts");
      write_file_atomically(at("parent/config.json"), to_json(config));
    }
    prune_to(at("parent"), at(name), {.experts = 4, .expert_width = 5, .by = By::first});
    const Node config = parse_json_file(at(name) / "config.json");
    EXPECT_EQ(config.find("block_configs"), nullptr);
    EXPECT_EQ(config.at(key).as_int(), 4);
    EXPECT_EQ(config.find(as_transformers_5 ? "num_experts" : "num_local_experts"), nullptr);
    EXPECT_EQ(config.at("moe_intermediate_size").as_int(), 5);
    EXPECT_EQ(
        blocks_of(at(name)),
        std::vector(2, descriptor::BlockConfig{descriptor::AttentionSubblock{4}, descriptor::MoESubblock{4, 2, 5}}));
  }
}

TEST_F(PrunedFolders, AreReproducedFromTheirRecord) {
  write("parent", "qwen3_moe", kMixtures);
  Scores scores;
  scores.folder = "some scores";
  scores.values[{1, Kind::ffn_channels}] = at::arange(32, at::kDouble);
  prune_to(at("parent"), at("narrow"), {.ffn_width = 8, .layers = {{1}}}, &scores);
  prune_to(at("parent"), at("child"), kEverything);
  prune_to(at("parent"), at("averaged"), {.kv_heads = 2, .layers = {{0, 4}}, .average_kv = true});
  for (const std::string child : {"narrow", "child", "averaged"}) {
    const Pruning record = read_pruning(at(child) / kPruningFile, static_cast<int64_t>(kMixtures.size()));
    write_pruned({.model = at("parent"), .output = at(child + "_again")}, record, families());
    for (const char* file : {"model.safetensors", "config.json", kPruningFile}) {
      EXPECT_EQ(read_file(at(child + "_again") / file), read_file(at(child) / file)) << child << " " << file;
    }
  }
  const Node record = parse_json_file(at("narrow/pruning.json"));
  EXPECT_EQ(record.at("parent").as_string(), at("parent").string());
  EXPECT_EQ(record.at("chosen_by").at("scores").as_string(), "some scores");
  EXPECT_EQ(record.at("layers").size(), 1U);
  EXPECT_EQ(record.at("layers").at(0).at("layer").as_int(), 1);
  EXPECT_EQ(record.at("layers").at(0).at("ffn_channels").at(0).as_int(), 24);
}

// The same values for every reader: ranks that hold boxes of them, and pipeline stages.
TEST_F(PrunedFolders, AreTheSameOnRanksAndStages) {
  write("parent", "qwen3_moe", {{4, 8, 6, 2}, {4, 32}, {8, 8, 6, 3}});
  const PruneOptions options{
      .ffn_width = 16, .kv_heads = 2, .experts = 4, .expert_width = 4, .by = By::random, .seed = 1};
  const Pruning pruning = prune_to(at("parent"), at("child"), options);
  std::map<std::string, at::Tensor> whole;
  const auto child = pretrained::ModelFolder::open(at("child"), families()).load(at::kCPU, at::kFloat);
  for (const auto& [name, parameter] : nn::named_parameters(*child)) {
    whole[name] = parameter->value();
  }
  const PrunedModel source(at("parent"), pruning, families());
  std::mutex mutex;
  std::map<std::string, int64_t> held;
  for (const mesh::DeviceMeshParameters& shape :
       {mesh::DeviceMeshParameters{.data_parallel_shard = 2, .tensor_parallel = 2},
        mesh::DeviceMeshParameters{.data_parallel_shard = 4}}) {
    held.clear();
    mesh::run_ranks(4, [&](mesh::Transport& transport) {
      const mesh::DistributedContext context(shape, transport);
      const auto model = source.args().build({});
      train::testing::lay_out(*model, context);
      nn::materialize(*model, at::kCPU, at::kFloat);
      source.load(*model);
      const std::lock_guard lock(mutex);
      for (const auto& [name, parameter] : nn::named_parameters(*model)) {
        held[name] = std::max(held[name], parameter->value().numel());
        EXPECT_TRUE(at::equal(parameter->value(), narrow_to(whole.at(name), parameter->box()))) << name;
      }
    });
    EXPECT_LT(held.at("model.layers.1.mlp.down_proj.weight"), whole.at("model.layers.1.mlp.down_proj.weight").numel());
  }
  for (int64_t stage = 0; stage < 3; ++stage) {
    const auto part = source.args().build({.stage = {.current_stage = stage, .num_stages = 3}});
    nn::materialize(*part, at::kCPU, at::kFloat);
    source.load(*part);
    for (const auto& [name, parameter] : nn::named_parameters(*part)) {
      EXPECT_TRUE(at::equal(parameter->value(), whole.at(name))) << name;
    }
  }
}

TEST_F(PrunedFolders, AreRefusedBeforeAnythingIsWritten) {
  write("parent", "qwen3", {{4, 32}, {4, 32}});
  Pruning pruning = choose({.ffn_width = 8, .by = By::first}, blocks_of(at("parent")));
  const auto problem = [&](const fs::path& output) {
    return error_of([&] { write_pruned({.model = at("parent"), .output = output}, pruning, families()); });
  };
  EXPECT_THAT(problem(at("parent")), HasSubstr("parent: already exists; choose another folder"));
  EXPECT_THAT(problem(at("no/child")), HasSubstr("no: no such folder; create it first"));
  pruning.layers[1].kv_heads = {0, 1, 2};
  EXPECT_THAT(
      problem(at("child")),
      AllOf(HasSubstr("parent: layer 1: kv_heads: expected a divisor of the layer's 4"), HasSubstr("found 3")));
  pruning.layers.pop_back();
  EXPECT_THAT(problem(at("child")), HasSubstr("parent: expected the kept parts of 2 layers, found 1"));
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(at(""))) {
    entries += entry.path().filename() == "parent" ? 0 : 1;
  }
  EXPECT_EQ(entries, 0);
}

TEST_F(PrunedFolders, RefuseInvalidRecords) {
  const auto problem = [&](const std::string& layers, const std::vector<descriptor::BlockConfig>& blocks) {
    write_file_atomically(at("pruning.json"), fmt::format(R"({{"layers": [{}]}})", layers));
    return error_of(
        [&] { child_blocks(read_pruning(at("pruning.json"), 2), blocks, at("pruning.json").string() + ": "); });
  };
  using descriptor::AttentionSubblock;
  using descriptor::FFNSubblock;
  const std::vector<descriptor::BlockConfig> dense(2, {AttentionSubblock{4}, FFNSubblock{6}});
  const std::vector<descriptor::BlockConfig> mixtures(2, {AttentionSubblock{4}, descriptor::MoESubblock{4, 2, 3}});
  EXPECT_THAT(problem(R"({"layer": 2})", dense), HasSubstr("layer: expected each of 0 to 1 at most once, found 2"));
  EXPECT_THAT(problem(R"({"layer": 0}, {"layer": 0})", dense), HasSubstr("at most once, found 0"));
  EXPECT_THAT(problem(R"({"layer": 0, "ffn": [1]})", dense), HasSubstr("'ffn' is not known"));
  EXPECT_THAT(problem(R"({"layer": 0, "drop": ["mlp"]})", dense), HasSubstr("expected \"attention\" or \"ffn\""));
  EXPECT_THAT(problem(R"({"layer": 0, "kv_heads": []})", dense), HasSubstr("expected the kept indices, found none"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "ffn_channels": [0, 6]})", dense),
      HasSubstr("pruning.json: layer 1: ffn_channels: expected ascending numbers from 0 to 5, found 6 at index 1"));
  EXPECT_THAT(problem(R"({"layer": 1, "ffn_channels": [1, 1]})", dense), HasSubstr("found 1 at index 1"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "experts": [1, 2]})", dense), HasSubstr("layer 1: experts: the layer has no experts"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "ffn_channels": [1]})", mixtures),
      HasSubstr("layer 1: ffn_channels: the layer has no feed-forward block"));
  EXPECT_THAT(problem(R"({"layer": 1, "drop": ["attention"], "kv_heads": [1]})", dense), HasSubstr("has no attention"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "averaged_kv_heads": 2, "kv_heads": [1, 2]})", dense),
      HasSubstr("a divisor of the layer's 4"));
  for (const int64_t none : {0, -1}) {
    EXPECT_THAT(
        problem(fmt::format(R"({{"layer": 1, "averaged_kv_heads": {}}})", none), dense),
        HasSubstr(fmt::format("expected 1 or more, found {}", none)));
  }
  EXPECT_THAT(
      problem(R"({"layer": 1, "shared_channels": [1]})", mixtures),
      HasSubstr("layer 1: shared_channels: the layer has no shared expert"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "shared_channels": [1]})", dense),
      HasSubstr("layer 1: experts: the layer has no experts"));
  std::vector<descriptor::BlockConfig> windows = dense;
  std::get<AttentionSubblock>(windows[1].attention).window = 9;
  EXPECT_THAT(problem(R"({"layer": 1, "window": 0})", dense), HasSubstr("window: expected 1 or more tokens, found 0"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "window": 9})", windows),
      HasSubstr("layer 1: window: expected 1 or more tokens, fewer than the layer's 9, found 9"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "drop": ["attention"], "window": 2})", dense),
      HasSubstr("layer 1: window: the layer has no attention"));
  EXPECT_THAT(
      problem(R"({"layer": 1, "expert_channels": [[0], [0], [0, 1], [0]]})", mixtures),
      HasSubstr("expected equally long lists of channels for the 4 experts that are kept"));
}

}  // namespace
}  // namespace lehr::prune

// Sub-block checkpoints: split, merged again, and read like any other model folder.
#include "lehr/pretrained/subblocks.h"

#include <gmock/gmock.h>

#include "lehr/config/json.h"
#include "lehr/pretrained/convert.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/state/safetensors_writer.h"
#include "test/model/heterogeneous.h"
#include "test/train/support.h"
#include "test/train/written_model.h"

namespace lehr::pretrained {
namespace {

namespace fs = std::filesystem;
using model::test::kMixed;
using model::test::kMixtures;
using ::testing::HasSubstr;
using train::testing::error_of;
using train::testing::families;
using train::testing::Folder;
using train::testing::write_model;

const fs::path kReferences = fs::path(LEHR_SOURCE_DIR) / "test/data/reference";

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class EveryFamily : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    References,
    EveryFamily,
    ::testing::Values(
        "qwen3_tied_v4config",
        "qwen3_seqcls",
        "qwen3moe_sparse_step2",
        "llama_rope_llama3",
        "glm4_moe_air",
        "minimax_m2_published",
        "deepseek_v3_one_group",
        "deepseek_v3_biases",
        "qwen3_next_types"));

TEST_P(EveryFamily, SplitsAndMergesToTheSameBytes) {
  const Folder folder;
  const fs::path original = kReferences / GetParam();
  const fs::path split = folder.path() / "split";
  const auto report = convert_checkpoint({.model = original, .output = split, .subblocks = true}, families());
  const size_t layers = families().from_hf_folder(original)->block_configs().size();
  std::set<std::string> wanted{"embeddings.safetensors", "lm_head.safetensors"};
  for (size_t i = 0; i < layers; ++i) {
    wanted.insert(fmt::format("block_{}_attention.safetensors", i));
    wanted.insert(fmt::format("block_{}_ffn.safetensors", i));
  }
  EXPECT_EQ(files_in(split / kSubblocksFolder), wanted);
  EXPECT_EQ(report.num_files, static_cast<int64_t>(wanted.size()));
  EXPECT_FALSE(fs::exists(split / "model.safetensors"));

  // The index is an ordinary one, and every tensor is in the file of its group, with the same bytes.
  const Node index = parse_json_file(split / "model.safetensors.index.json").at("weight_map");
  const state::WeightReader before(original), after(split);
  EXPECT_EQ(index.size(), before.names().size());
  const auto groups =
      families().descriptor_of_hf_folder(original).get_weight_groups(before.names(), static_cast<int64_t>(layers));
  for (const auto& [group, names] : groups) {
    for (const std::string& name : names) {
      EXPECT_EQ(index.at(name).as_string(), fmt::format("subblocks_safetensors/{}.safetensors", group));
      EXPECT_TRUE(at::equal(before.tensor(name), after.tensor(name))) << name;
    }
  }

  convert_checkpoint({.model = split, .output = folder.path() / "back"}, families());
  for (const char* file : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_file(folder.path() / "back" / file), read_file(original / file)) << file;
  }
}

// A no-op has no file; other layouts and dtypes of the same weights may be split as well.
TEST(Subblocks, HaveNoFileForANoOp) {
  const Folder folder;
  write_model(folder.path() / "mixed", "qwen3", kMixed, 1);
  convert_checkpoint(
      {.model = folder.path() / "mixed", .output = folder.path() / "split", .subblocks = true}, families());
  const auto files = files_in(folder.path() / "split" / kSubblocksFolder);
  for (size_t i = 0; i < kMixed.size(); ++i) {
    EXPECT_EQ(files.contains(fmt::format("block_{}_attention.safetensors", i)), kMixed[i].kv_heads > 0) << i;
    EXPECT_EQ(files.contains(fmt::format("block_{}_ffn.safetensors", i)), kMixed[i].width > 0) << i;
  }
  write_model(folder.path() / "mixtures", "qwen3_moe", kMixtures, 2);
  convert_checkpoint(
      {.model = folder.path() / "mixtures",
       .output = folder.path() / "fused",
       .layout = descriptor::ExpertLayout::fused,
       .dtype = at::kBFloat16,
       .subblocks = true},
      families());
  const state::SafetensorsFile ffn(folder.path() / "fused" / kSubblocksFolder / "block_2_ffn.safetensors");
  EXPECT_EQ(ffn.info("model.layers.2.mlp.experts.gate_up_proj").dtype, state::DType::kBF16);
  EXPECT_EQ(ffn.tensors().size(), 4U) << "router, norm, gates and ups, downs";
}

TEST(Subblocks, OfABareBackboneHaveTheSameGroups) {
  const Folder folder;
  const fs::path whole = folder.path() / "whole", bare = folder.path() / "bare";
  write_model(whole, "qwen3", kMixed, 1);
  fs::create_directory(bare);
  Node config = parse_json_file(whole / "config.json");
  Node architectures = Node::make_list();
  architectures.push_back(Node("Qwen3Model"));
  config.set("architectures", architectures);
  write_file_atomically(bare / "config.json", to_json(config));
  const state::WeightReader reader(whole);
  state::NamedTensors tensors;
  const std::string prefix = "model.";
  for (const std::string& name : reader.names()) {
    if (name.starts_with(prefix)) {
      tensors.emplace_back(name.substr(prefix.size()), reader.tensor(name));
    }
  }
  state::save_safetensors(bare / "model.safetensors", tensors);
  convert_checkpoint({.model = bare, .output = folder.path() / "split", .subblocks = true}, families());
  EXPECT_TRUE(fs::exists(folder.path() / "split" / kSubblocksFolder / "block_0_attention.safetensors"));
  convert_checkpoint({.model = folder.path() / "split", .output = folder.path() / "back"}, families());
  EXPECT_EQ(read_file(folder.path() / "back/model.safetensors"), read_file(bare / "model.safetensors"));
}

TEST(Subblocks, AreReadLikeAnyModelFolder) {
  const Folder folder;
  const fs::path whole = folder.path() / "whole", split = folder.path() / "split";
  write_model(whole, "qwen3", kMixed, 1, /*vocabulary=*/257);
  convert_checkpoint({.model = whole, .output = split, .subblocks = true}, families());
  // As in generate and eval.
  const at::Tensor ids = at::arange(6).unsqueeze(0);
  const auto states = [&](const fs::path& path) {
    const auto opened = ModelFolder::open(path, families()).load(at::kCPU, at::kDouble);
    return opened->forward({.input_ids = ids}).hidden_states;
  };
  EXPECT_TRUE(at::equal(states(split), states(whole)));
  // As the start of a run.
  std::vector<std::map<std::string, at::Tensor>> trained;
  for (const fs::path& start : {whole, split}) {
    const Folder run;
    train::TrainConfig config = train::testing::tiny_run(
        run.path(),
        {{"training.steps", "2"},
         {"lr_scheduler.warmup_steps", "1"},
         {"checkpoint.initial_load_path", "\"" + start.string() + "\""}});
    config.model = {};
    config.model.hf_assets_path = start.string();
    train::testing::train(config);
    trained.push_back(train::testing::tensors(train::testing::checkpoint(config, 2), "model"));
  }
  ASSERT_EQ(trained[0].size(), trained[1].size());
  for (const auto& [name, tensor] : trained[0]) {
    EXPECT_TRUE(at::equal(tensor, trained[1].at(name))) << name;
  }
}

TEST(Subblocks, NameAnInvalidWeightAndLeaveNothingBehind) {
  const Folder folder;
  const fs::path model = folder.path() / "model";
  write_model(model, "qwen3", kMixed, 1);
  const auto args = families().from_hf_folder(model);
  EXPECT_THAT(
      error_of([&] {
        plan_subblock_files(
            *args,
            families().descriptor("qwen3"),
            {{.name = "model.layers.0.mlp.up_proj.weight", .shape = {2}},
             {.name = "model.layers.6.mlp.up_proj.weight", .shape = {2}}});
      }),
      HasSubstr("weight model.layers.6.mlp.up_proj.weight: belongs to no weight group"));
  // A split folder with a missing file, and one with the tensors of another sub-block.
  const fs::path split = folder.path() / "split";
  convert_checkpoint({.model = model, .output = split, .subblocks = true}, families());
  const fs::path attention = split / kSubblocksFolder / "block_0_attention.safetensors";
  const fs::path aside = folder.path() / "aside";
  fs::rename(attention, aside);
  const auto convert = [&] {
    return error_of([&] { convert_checkpoint({.model = split, .output = folder.path() / "new"}, families()); });
  };
  EXPECT_THAT(
      convert(),
      HasSubstr("names subblocks_safetensors/block_0_attention.safetensors (for "
                "model.layers.0.input_layernorm.weight), which does not exist"));
  fs::copy_file(split / kSubblocksFolder / "block_1_attention.safetensors", attention);
  EXPECT_THAT(
      convert(),
      HasSubstr("model.layers.0.input_layernorm.weight: expected it in "
                "subblocks_safetensors/block_0_attention.safetensors, which does not contain it"));
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"aside", "model", "split"}));
}

}  // namespace
}  // namespace lehr::pretrained

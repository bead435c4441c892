#include "lehr/search/puzzletron_files.h"

#include <gmock/gmock.h>

#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/convert.h"
#include "lehr/search/child.h"
#include "lehr/search/local_distillation.h"
#include "test/search/support.h"

namespace lehr::search {

namespace {
using testing::families;
using testing::Teacher;

class PuzzletronFiles : public prune::testing::ModelsInFolders, public ::testing::WithParamInterface<const char*> {
 protected:
  PuzzletronFiles() {
    const std::string type = GetParam();
    const bool has_own_layers = type.ends_with("_moe") || type == "deepseek_v3" || type == "qwen3_next";
    write("teacher", type, has_own_layers ? model::test::layers_of(type) : model::test::kWithHoles);
    SpaceConfig config;
    if (type == "llama" || type == "gemma3_text") {
      config.windows = {5, 2};
    }
    teacher = std::make_unique<Teacher>(at("teacher"), config, at::kFloat);
    distil_locally(
        teacher->library,
        trainable_variants(teacher->space),
        teacher->task,
        testing::batches_from,
        {.steps = 2, .lr = 1e-2},
        "",
        [](const LocalDistillationProgress&) {});
    costs = count_costs(teacher->pieces, teacher->space, work);
    // One solution with the last variants, one with the second, where there are any.
    for (const bool last : {true, false}) {
      Choice choice = teacher_choice(teacher->space);
      for (const Place& place : alternatives(teacher->space)) {
        choice.of(place) = last ? place.variant : 1;
      }
      solutions.push_back({.choice = choice, .value = last ? 0.5 : 0.25, .cost = costs.of(choice)});
    }
    write_puzzletron_files(teacher->library, costs, work, solutions, at("teacher"), at("puzzletron"), families());
  }

  const descriptor::Workload work{.num_tokens = 64, .num_sequences = 2};
  std::unique_ptr<Teacher> teacher;
  CostTable costs;
  std::vector<PuzzletronSolution> solutions;
};

TEST_P(PuzzletronFiles, SolutionsBecomeTheSameChildren) {
  for (size_t i = 0; i < solutions.size(); ++i) {
    const std::string name = fmt::format("child{}", i), other = fmt::format("other{}", i);
    write_child(teacher->library, solutions[i].choice, at("teacher"), at(name), families());
    pretrained::convert_checkpoint(
        {.model = at("teacher"),
         .output = at(other),
         .replacements =
             pretrained::read_replacements((at("puzzletron/solutions.json")).string() + fmt::format("#{}", i))},
        families());
    EXPECT_EQ(read_file(at(other) / "model.safetensors"), read_file(at(name) / "model.safetensors"));
    EXPECT_EQ(prune::testing::blocks_of(at(other)), blocks_of(teacher->space, solutions[i].choice));
  }
}

TEST_P(PuzzletronFiles, TheLibraryHasEveryPairOfVariantsWithTheFilesOfItsSubblocks) {
  const Node entries = parse_json_file(at("puzzletron/replacement_library.json"));
  size_t pairs = 0;
  for (const LayerSpace& layer : teacher->space) {
    pairs += layer.attention.size() * layer.ffn.size();
  }
  EXPECT_EQ(entries.size(), pairs);
  for (const Node& entry : entries.items()) {
    const Node& block = entry.at("child_block_configs").at(0);
    const auto is_there = [&](const char* subblock) {
      const Node* no_op = block.at(subblock).find("no_op");
      return no_op == nullptr || no_op->is_null() || !no_op->as_bool();
    };
    EXPECT_EQ(
        entry.at("weight_paths").size(),
        static_cast<size_t>(is_there("attention")) + static_cast<size_t>(is_there("ffn")));
    for (const Node& path : entry.at("weight_paths").items()) {
      EXPECT_TRUE(std::filesystem::exists(path.as_string())) << path.as_string();
    }
  }
}

TEST_P(PuzzletronFiles, StatisticsAddUpToTheCostsOfASolution) {
  const Node statistics = parse_json_file(at("puzzletron/subblock_stats.json")).at(0);
  const Node written = parse_json_file(at("puzzletron/solutions.json"));
  const auto places = all_variants(teacher->space);
  ASSERT_EQ(statistics.at("subblocks").size(), places.size());
  for (size_t i = 0; i < solutions.size(); ++i) {
    int64_t parameters = statistics.at("non_block").at("num_params").as_int();
    double memory = statistics.at("non_block").at("memory_mib").as_double();
    for (size_t j = 0; j < places.size(); ++j) {
      if (solutions[i].choice.of(places[j].layer, places[j].subblock) == places[j].variant) {
        parameters += statistics.at("subblocks").at(j).at("num_params").as_int();
        memory += statistics.at("subblocks").at(j).at("memory_mib").as_double();
      }
    }
    const Node& totals = written.at(i).at("total_costs");
    EXPECT_EQ(totals.at("stats.num_params").as_int(), parameters);
    EXPECT_NEAR(totals.at("stats.memory_mib").as_double(), memory, 1e-9);  // sums in another order
    EXPECT_EQ(written.at(i).at("total_value").as_double(), solutions[i].value);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    PuzzletronFiles,
    ::testing::ValuesIn(test::every_nth<const char*>(  // every second one unless LEHR_ALL_MESHES=1
        2,
        {"qwen2", "qwen3", "gemma3_text", "llama", "glm4_moe", "qwen3_moe", "qwen3_next", "deepseek_v3"})));
}  // namespace

}  // namespace lehr::search

// A model that is loaded over a mesh has the losses and the tokens of one device.
#include "lehr/train/load_on_ranks.h"

#include <gmock/gmock.h>

#include <mutex>

#include "lehr/base/error.h"
#include "lehr/train/generate.h"
#include "lehr/train/validate.h"
#include "test/base/error_of.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::Mesh;
using ::testing::ThrowsMessage;

// Calls `body` on each rank with the ranks and the model of `folder`.
void with_model(
    const Mesh& mesh,
    const TrainConfig& of_run,
    const std::filesystem::path& folder,
    const std::function<void(const Ranks& ranks, nn::Model& model)>& body) {
  const TrainConfig config = testing::with_degrees(of_run, mesh);
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        const auto list = testing::specs();
        const Ranks ranks(config.parallelism, &transport);
        const auto opened = pretrained::ModelFolder::open(folder, list.families());
        const auto model = load_on_ranks(opened, list, config, ranks, at::kCPU);
        body(ranks, *model);
      },
      std::chrono::seconds(60));
}

ValidationResult evaluate(const TrainConfig& config, const Ranks& ranks, nn::Model& model) {
  const auto tokenizer = build_tokenizer(config);
  const auto data = open_run_data(config, *tokenizer, {.vocab_size = 257}, [](const std::string&) {});
  const CausalLMTask task;
  const auto stream = data.validation(ranks.share(4 * ranks.data_parallel_size()), 32);
  return validate(model, task, *stream, {.ranks = &ranks, .device = at::kCPU});
}

// A model of a few steps, with weights large enough that its tokens depend on every layer.
TrainConfig trained(const Folder& folder, const std::string& name, const Overrides& more = {}) {
  Overrides overrides = testing::family(name);
  const Overrides few{
      {"training.steps", "3"},
      {"checkpoint.interval", "3"},
      {"model.args.num_hidden_layers", "4"},
      {"model.args.initializer_range", "0.3"},
      {"training.global_batch_size", "4"}};
  overrides.insert(overrides.end(), few.begin(), few.end());
  const auto config = testing::tiny_run(folder.path(), testing::joined(overrides, more));
  testing::train(config);
  return config;
}

struct Prompt {
  std::vector<int64_t> ids;
  double temperature;
};
// Of one token, of a multiple of two and four ranks, and of neither.
const std::vector<Prompt> kPrompts{{{65}, 0}, {{66, 67, 68, 69, 70, 71, 72, 73}, 0.7}, {{80, 81, 82, 83, 84}, 1.0}};

std::vector<std::vector<int64_t>> generated(nn::Model& model, const Ranks& ranks) {
  std::vector<std::vector<int64_t>> all;
  for (const auto& [ids, temperature] : kPrompts) {
    all.push_back(generate(
        model,
        ids,
        {.max_new_tokens = 12, .temperature = temperature, .seed = 3, .device = at::kCPU, .ranks = &ranks}));
  }
  return all;
}

const std::vector<Mesh> kMeshes{
    {.dp_shard = 2},
    {.dp_shard = 4},
    {.tp = 2},
    {.tp = 4},
    {.pp = 2},
    {.tp = 2, .pp = 2},
    {.dp_shard = 2, .tp = 2},
    {.dp_shard = 2, .pp = 4}};
const std::vector<Mesh> kMeshesOfExperts{
    {.dp_shard = 2, .ep = 2},
    {.dp_shard = 4, .ep = 2},
    {.tp = 2},
    {.tp = 4, .ep = 4},
    {.pp = 2},
    {.tp = 2, .ep = 2, .pp = 2},
    {.dp_shard = 2, .tp = 2, .ep = 4},
    {.dp_shard = 2, .ep = 2, .pp = 2}};

class LoadedOnRanks : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Families,
    LoadedOnRanks,
    ::testing::Values("qwen3", "qwen3_moe", "llama3", "gemma3", testing::kGemma4Small, "deepseek_v3"),
    [](const auto& one) { return std::string(one.param); });

TEST_P(LoadedOnRanks, HasTheLossAndTheTokensOfOneDevice) {
  const std::string name = GetParam();
  const Folder folder;
  const auto config = trained(folder, name);
  const auto checkpoint = testing::checkpoint(config, 3);
  ValidationResult wanted;
  std::vector<std::vector<int64_t>> tokens;
  with_model({}, config, checkpoint, [&](const Ranks& ranks, nn::Model& model) {
    wanted = evaluate(config, ranks, model);
    tokens = generated(model, ranks);
  });
  EXPECT_NE(tokens[1], tokens[2]);
  const bool experts = name == "qwen3_moe" || name == "deepseek_v3";
  for (const Mesh& mesh : experts ? kMeshesOfExperts : kMeshes) {
    SCOPED_TRACE(mesh.name());
    std::mutex mutex;
    with_model(mesh, config, checkpoint, [&](const Ranks& ranks, nn::Model& model) {
      const ValidationResult found = evaluate(config, ranks, model);
      const auto own_tokens = generated(model, ranks);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(found.valid, wanted.valid);
      EXPECT_NEAR(found.loss, wanted.loss, 1e-10 * wanted.loss);
      EXPECT_EQ(own_tokens, tokens);
    });
  }
}

TEST(LoadedOnRanks, HasTheSameBitsOnOneDeviceWithItsWeightsOnTheHost) {
  const Folder folder;
  auto config = trained(folder, "qwen3");
  const auto list = testing::specs();
  const auto opened = pretrained::ModelFolder::open(testing::checkpoint(config, 3), list.families());
  const auto outcome = [&] {
    const Ranks ranks(config.parallelism, nullptr);
    const auto model = load_on_ranks(opened, list, config, ranks, at::kCPU);
    return std::pair(evaluate(config, ranks, *model).loss, generated(*model, ranks));
  };
  const auto wanted = outcome();
  config.parallelism.fsdp_cpu_offload = true;
  EXPECT_EQ(outcome(), wanted);
}

// Context parallelism has no caches, but losses.
TEST(LoadedOnRanks, HasTheLossOfOneDeviceOnPartsOfSequences) {
  const Folder folder;
  const auto config = trained(folder, "qwen3_moe");
  double wanted = 0;
  with_model({}, config, testing::checkpoint(config, 3), [&](const Ranks& ranks, nn::Model& model) {
    wanted = evaluate(config, ranks, model).loss;
  });
  for (const Mesh& mesh : {Mesh{.cp = 2}, Mesh{.dp_replicate = 2, .cp = 2, .ep = 2}, Mesh{.cp = 2, .tp = 2, .pp = 2}}) {
    SCOPED_TRACE(mesh.name());
    with_model(mesh, config, testing::checkpoint(config, 3), [&](const Ranks& ranks, nn::Model& model) {
      EXPECT_NEAR(evaluate(config, ranks, model).loss, wanted, 1e-10 * wanted);
    });
  }
}

// No rank holds a whole model, also while it generates: the units are unsharded one after the other.
TEST(LoadedOnRanks, HoldsAShardOnEachRank) {
  const Folder folder;
  const auto config = trained(folder, "qwen3");
  int64_t whole = 0;
  with_model({}, config, testing::checkpoint(config, 3), [&](const Ranks&, nn::Model& model) {
    whole = nn::count_parameters(model);
  });
  for (const Mesh& mesh : {Mesh{.dp_shard = 4}, Mesh{.pp = 4}}) {
    SCOPED_TRACE(mesh.name());
    with_model(mesh, config, testing::checkpoint(config, 3), [&](const Ranks& ranks, nn::Model& model) {
      generated(model, ranks);
      int64_t mine = 0;
      for (const auto& [name, parameter] : nn::named_parameters(model)) {
        mine += parameter->value().numel();
      }
      EXPECT_LT(mine, whole / 2);
    });
  }
}

// The tokens that tensor parallelism pads a sequence with would stay in the state.
TEST(LoadedOnRanks, RefuseToGenerateWithLinearAttentionThatIsSplitByHeads) {
  const Folder folder;
  const auto config = trained(folder, "qwen3_next");
  with_model(Mesh{.tp = 2}, config, testing::checkpoint(config, 3), [](const Ranks& ranks, nn::Model& model) {
    EXPECT_THAT(
        [&] { generated(model, ranks); }, ThrowsMessage<Error>(HasSubstr("parallelism.tensor_parallel_degree")));
  });
}

TEST(LoadedOnRanks, HasAdaptersOnTheirBase) {
  const Folder of_base, folder;
  const auto base = trained(of_base, "qwen3");
  const auto config = trained(
      folder,
      "qwen3",
      {{"checkpoint.initial_load_path", '"' + testing::checkpoint(base, 3).string() + '"'},
       {"peft.method", "lora"},
       {"optimizer.lr", "0.1"}});
  double wanted = 0, of_the_base = 0;
  std::vector<std::vector<int64_t>> tokens;
  with_model({}, config, testing::checkpoint(base, 3), [&](const Ranks& ranks, nn::Model& model) {
    of_the_base = evaluate(config, ranks, model).loss;
  });
  with_model({}, config, testing::checkpoint(config, 3), [&](const Ranks& ranks, nn::Model& model) {
    wanted = evaluate(config, ranks, model).loss;
    tokens = generated(model, ranks);
  });
  EXPECT_GT(std::abs(wanted - of_the_base), 1e-3);
  for (const Mesh& mesh : {Mesh{.dp_shard = 2}, Mesh{.tp = 2}, Mesh{.pp = 2}, Mesh{.dp_shard = 2, .tp = 2, .pp = 2}}) {
    SCOPED_TRACE(mesh.name());
    with_model(mesh, config, testing::checkpoint(config, 3), [&](const Ranks& ranks, nn::Model& model) {
      EXPECT_NEAR(evaluate(config, ranks, model).loss, wanted, 1e-10 * wanted);
      EXPECT_EQ(generated(model, ranks), tokens);
    });
  }
}

TEST(LoadedOnRanks, RefuseWeightsThatDoNotFitOnEveryRank) {
  const Folder folder;
  const auto config = trained(folder, "qwen3");
  const auto checkpoint = testing::checkpoint(config, 3);
  const std::string file = (checkpoint / "config.json").string();
  std::string text = read_file(file);
  const std::string was = "\"intermediate_size\": 24";
  ASSERT_NE(text.find(was), std::string::npos);
  write_file_atomically(file, text.replace(text.find(was), was.size(), "\"intermediate_size\": 32"));
  for (const Mesh& mesh : {Mesh{.dp_shard = 2}, Mesh{.pp = 2}}) {
    EXPECT_THAT(
        any_error::error_of([&] { with_model(mesh, config, checkpoint, [](const Ranks&, nn::Model&) {}); }),
        HasSubstr("shapes differ from the model's"));
  }
}

}  // namespace
}  // namespace lehr::train

// An embedding run on any mesh equals the run on one device whose micro-batches have the pairs of all ranks.
#include <gmock/gmock.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::every_nth;
using testing::expect_equal;
using testing::family;
using testing::Folder;
using testing::kSteps;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::tiny_run;
using testing::train_on;

// 37 pairs of different lengths, so that the last batch of a validation is padded. No two candidates of a micro-batch
// are equal: rounding would decide which of them is the most similar.
std::string write_examples(const Folder& folder) {
  const std::string text = "the quick brown fox jumps over the lazy dog and hides";
  std::string lines;
  for (size_t i = 0; i < 37; ++i) {
    lines += fmt::format(
        "{{\"anchor\": \"{}\", \"positive\": \"{}\", \"negative\": \"no {}\"}}\n",
        text.substr(i, 4 + i % 9),
        text.substr(i % 29, 3 + i % 11),
        text.substr(i % 31, 2 + i % 7));
  }
  const auto file = folder.path() / "pairs.jsonl";
  write_file_atomically(file, lines);
  return "\"" + file.string() + "\"";
}

// A step has two micro-batches, of `pairs` together on all ranks, and so has the sequences of eight pairs.
TrainConfig run_of(
    const Folder& folder, const std::string& examples, int64_t texts, int64_t row_ranks, const Overrides& more = {}) {
  constexpr int64_t kPairs = 4, kMicrobatches = 2;
  Overrides overrides = family("qwen3");
  const std::string local = std::to_string(kPairs * texts / row_ranks);
  for (const auto& entry : Overrides{
           {"training.task", "\"embedding\""},
           {"training.contrastive_temperature", "0.3"},
           {"data.datasets.0.path", examples},
           {"data.datasets.0.kind", "\"pairs\""},
           {"data.datasets.0.negative_key", texts == 3 ? "\"negative\"" : "\"\""},
           {"data.datasets.0.split_documents", "\"\""},
           {"data.validation_path", examples},
           {"data.validation_fraction", "0"},
           {"training.local_batch_size", local},
           {"training.global_batch_size", std::to_string(kPairs * kMicrobatches * texts)},
           {"validation.local_batch_size", local}}) {
    overrides.push_back(entry);
  }
  return tiny_run(folder.path(), testing::joined(overrides, more));
}

// Every second mesh, from the first, unless LEHR_ALL_MESHES=1.
void expect_law(
    int64_t texts, const std::vector<Mesh>& meshes, const Overrides& more = {}, const std::string& weights = "model") {
  const Folder data, of_one;
  const std::string examples = write_examples(data);
  const auto one_device = run_of(of_one, examples, texts, 1, more);
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device, weights);
  EXPECT_EQ(wanted.curves.at("accuracy").size(), static_cast<size_t>(kSteps));
  for (const Mesh& mesh : every_nth(2, meshes)) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = run_of(folder, examples, texts, mesh.dp_replicate * mesh.dp_shard, more);
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config, weights));
  }
}

TEST(EmbeddingOnMeshes, EqualsOneDevice) {
  expect_law(
      2,
      {{.dp_shard = 2},
       {.dp_replicate = 2},
       {.dp_replicate = 2, .dp_shard = 2},
       {.tp = 2},
       {.dp_shard = 2, .tp = 2},
       {.pp = 2},
       {.dp_shard = 2, .pp = 2}});
}

// The embedding of a text is on the rank that has its last token: of an anchor on another one than of its candidates.
TEST(EmbeddingOnMeshes, OfTextsOverSeveralRanksEqualsOneDevice) {
  expect_law(2, {{.dp_shard = 2, .cp = 2}, {.cp = 2}, {.dp_replicate = 2, .cp = 2, .pp = 2}, {.cp = 2, .tp = 2}});
  expect_law(3, {{.cp = 4}, {.dp_shard = 2, .cp = 4}});
}

TEST(EmbeddingOnMeshes, WithHardNegativesEqualsOneDevice) {
  expect_law(3, {{.dp_shard = 2}, {.dp_replicate = 2, .tp = 2}, {.dp_shard = 4}});
}

// Router losses are those of each rank's micro-batch, so they would differ from one device's.
TEST(EmbeddingOnMeshes, OfExpertsEqualsOneDevice) {
  Overrides experts = family("qwen3_moe");
  experts.erase(
      std::remove_if(
          experts.begin(), experts.end(), [](const auto& entry) { return !entry.first.starts_with("model."); }),
      experts.end());
  expect_law(2, {{.dp_shard = 2, .ep = 2}, {.tp = 2}, {.cp = 2, .ep = 2}}, experts);
}

// Masks depend on a sequence's place in the step, so micro-batches of several ranks must count it as one device does.
TEST(EmbeddingOnMeshes, OfAdaptersWithDropoutEqualsOneDevice) {
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), family("qwen3"));
  testing::train(base);
  expect_law(
      2,
      {{.dp_shard = 2}, {.dp_replicate = 2, .tp = 2}},
      {{"checkpoint.initial_load_path", "\"" + testing::checkpoint(base, kSteps).string() + "\""},
       {"peft.method", "lora"},
       {"peft.r", "4"},
       {"peft.dropout", "0.25"},
       {"peft.target_pattern", "'.*_proj'"}},
      "adapter_model");
}

TEST(EmbeddingOnMeshes, ContinuesOnAnotherMesh) {
  const Folder data, of_one, folder;
  const std::string examples = write_examples(data);
  const auto one_device = run_of(of_one, examples, 2, 1);
  testing::train(one_device);
  train_on({.dp_shard = 2}, run_of(folder, examples, 2, 2), kSteps / 2);
  const auto config = run_of(folder, examples, 2, 1);
  train_on({.tp = 2}, config);
  expect_equal(outcome_of(one_device), outcome_of(config));
}

}  // namespace
}  // namespace lehr::train

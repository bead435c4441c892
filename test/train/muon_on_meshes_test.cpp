// Runs with Muon on meshes equal one device: owners gather whole matrices of which ranks hold shards.
#include <gmock/gmock.h>

#include <mutex>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Case;
using testing::every_nth;
using testing::expect_equal;
using testing::family;
using testing::Folder;
using testing::Mesh;
using testing::on_mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::tiny_run;
using testing::train_on;

// The suffix "_deep" asks for as many layers as four pipeline stages need.
Overrides run_of(const std::string& name, const Overrides& more = {}) {
  const bool deep = name.ends_with("_deep");
  Overrides overrides = family(deep ? name.substr(0, name.rfind('_')) : name);
  if (deep) {
    overrides.emplace_back("model.args.num_hidden_layers", "4");
  }
  for (const auto& entry :
       Overrides{{"training.global_batch_size", "8"}, {"optimizer.name", "muon"}, {"optimizer.lr", "0.01"}}) {
    overrides.push_back(entry);
  }
  return testing::joined(overrides, more);
}

const Overrides kInterleaved{
    {"parallelism.pipeline_parallel_schedule", "Interleaved1F1B"},
    {"parallelism.pipeline_parallel_stages_per_rank", "2"}};
const Overrides kZeroBubble{{"parallelism.pipeline_parallel_schedule", "ZBH1"}};
const Overrides kOffload{{"parallelism.fsdp_cpu_offload", "true"}};

// Without LEHR_ALL_MESHES=1, the dense and the sparse model run by turns.
std::vector<Case> cases() {
  std::vector<Case> found;
  size_t first = 1;
  for (const std::string name : {"qwen3", "qwen3_moe"}) {
    const std::vector<Case> of_model{
        {name, {.dp_replicate = 2}},
        {name, {.dp_shard = 2}},
        {name, {.dp_shard = 4}},
        {name, {.dp_replicate = 2, .dp_shard = 2}},
        {name, {.tp = 2}},
        {name, {.cp = 2}},
        {name, {.dp_shard = 2, .tp = 2}},
        {name, {.dp_shard = 2, .pp = 2}},
        {name, {.tp = 2, .pp = 2}},
        {name, {.dp_shard = 2, .cp = 2, .tp = 2}},
        {name + "_deep", {.pp = 2}, "_Interleaved1F1B", kInterleaved},
        {name, {.pp = 2}, "_ZBH1", kZeroBubble},
        {name, {.dp_shard = 2, .tp = 2}, "_offload", kOffload}};
    for (const Case& one : every_nth(2, of_model, first--)) {
      found.push_back(one);
    }
  }
  const std::vector<Mesh> of_experts{
      {.dp_shard = 2, .ep = 2},
      {.dp_shard = 4, .ep = 2},
      {.dp_replicate = 2, .dp_shard = 2, .ep = 2},
      {.tp = 2, .ep = 2},
      {.dp_shard = 2, .tp = 2, .ep = 4},
      {.dp_shard = 2, .ep = 2, .pp = 2}};
  for (const Mesh& mesh : every_nth(2, of_experts, 1)) {
    found.push_back({"qwen3_moe", mesh});
  }
  return found;
}

class MuonOnMeshes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, MuonOnMeshes, ::testing::ValuesIn(cases()), [](const auto& one) {
  return ::testing::PrintToString(one.param);
});

// The run of a family on one device, once per process.
const Outcome& alone(const std::string& name) {
  static std::map<std::string, Outcome> outcomes;
  const auto found = outcomes.find(name);
  if (found != outcomes.end()) {
    return found->second;
  }
  const Folder folder;
  const auto config = tiny_run(folder.path(), run_of(name));
  testing::train(config);
  const Outcome outcome = outcome_of(config);
  testing::expect_moved(testing::initial_weights(run_of(name)), outcome.tensors);
  return outcomes[name] = outcome;
}

TEST_P(MuonOnMeshes, EqualOneDevice) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), run_of(GetParam().family, GetParam().overrides));
  train_on(GetParam().mesh, config);
  expect_equal(alone(GetParam().family), outcome_of(config));
}

TEST(Muon, ContinuesOnAnyOtherMesh) {
  const std::vector<std::pair<Mesh, Mesh>> pairs{
      {{.dp_shard = 4, .ep = 2}, {.tp = 2}},
      {{.tp = 2, .pp = 2}, {}},
      {{.dp_replicate = 2, .dp_shard = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}},
      {{}, {.dp_shard = 2, .tp = 2}}};
  for (const auto& [from, to] : pairs) {
    SCOPED_TRACE(from.name() + " to " + to.name());
    const Folder folder;
    const auto config = tiny_run(folder.path(), run_of("qwen3_moe"));
    train_on(from, config, testing::kSteps / 2);
    train_on(to, config);
    expect_equal(alone("qwen3_moe"), outcome_of(config));
  }
}

// A run that stops and resumes on one mesh has the bits of the run that did not stop, and replicas have the same bits.
TEST(Muon, InMixedPrecisionResumesBitForBitOnAMesh) {
  const Overrides mixed =
      run_of("qwen3_moe", {{"training.dtype", "float32"}, {"training.mixed_precision_param", "bfloat16"}});
  const Mesh mesh{.dp_replicate = 2, .dp_shard = 2, .ep = 2};
  const Folder whole, parts;
  const auto once = tiny_run(whole.path(), mixed), twice = tiny_run(parts.path(), mixed);
  std::map<std::string, std::map<int64_t, at::Tensor>> shards;  // by name and offset in the replica
  std::mutex mutex;
  on_mesh(mesh, once, 0, [&](Trainer& trainer) {
    trainer.run();
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
      const at::Tensor value = parameter->value().detach().clone();
      const int64_t place = parameter->box().front().begin;
      const auto [other, is_new] = shards[name].emplace(place, value);
      EXPECT_TRUE(is_new || other->second.sizes() != value.sizes() || at::equal(other->second, value)) << name;
    }
  });
  train_on(mesh, twice, testing::kSteps / 2);
  train_on(mesh, twice);
  for (const std::string stem : {"model", "optimizer"}) {
    testing::expect_same_bits(
        testing::tensors(testing::checkpoint(once, testing::kSteps), stem),
        testing::tensors(testing::checkpoint(twice, testing::kSteps), stem));
  }
}

}  // namespace
}  // namespace lehr::train

// Runs on meshes equal one device with the optimizers that test/train/mesh_test.cpp does not use: SGD, Adam, Muon, and
// AdamW with stochastic rounding.
#include <gmock/gmock.h>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::expect_equal;
using testing::family;
using testing::Folder;
using ::testing::HasSubstr;
using testing::joined;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::tiny_run;
using testing::train_on;

struct OptimizerCase {
  std::string name;
  std::string family;
  Overrides optimizer;
  std::vector<Mesh> meshes;
};

// A run of this file: few sequences per step, since it runs often.
Overrides run_of(const std::string& name, const Overrides& more) {
  return joined(joined(family(name), {{"training.global_batch_size", "8"}}), more);
}

const std::vector<Mesh> kMeshes{{.dp_replicate = 2, .dp_shard = 2}, {.tp = 2}, {.cp = 2}, {.pp = 2}};

class OptimizersOnMeshes : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(OptimizersOnMeshes, EqualOneDevice) {
  const Overrides overrides = run_of(GetParam().family, GetParam().optimizer);
  const Folder alone;
  const auto one_device = tiny_run(alone.path(), overrides);
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device);
  testing::expect_moved(testing::initial_weights(overrides), wanted.tensors);
  for (const Mesh& mesh : GetParam().meshes) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = tiny_run(folder.path(), overrides);
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    OptimizersOnMeshes,
    ::testing::Values(
        OptimizerCase{
            "sgd",
            "qwen3",
            {{"optimizer.name", "sgd"},
             {"optimizer.lr", "0.5"},
             {"optimizer.momentum", "0.9"},
             {"optimizer.dampening", "0.1"},
             {"optimizer.weight_decay", "0.01"}},
            kMeshes},
        OptimizerCase{
            "sgd_nesterov_experts",
            "qwen3_moe",
            {{"optimizer.name", "sgd"},
             {"optimizer.lr", "0.5"},
             {"optimizer.momentum", "0.9"},
             {"optimizer.nesterov", "true"}},
            {{.dp_shard = 4, .ep = 2}}},
        OptimizerCase{
            "adam",
            "qwen3",
            {{"optimizer.name", "adam"}, {"optimizer.lr", "0.01"}, {"optimizer.weight_decay", "0.01"}},
            kMeshes},
        OptimizerCase{
            "adam_experts",
            "qwen3_moe",
            {{"optimizer.name", "adam"}, {"optimizer.lr", "0.01"}},
            {{.dp_shard = 2, .tp = 2, .ep = 4}}},
        OptimizerCase{
            "muon_all_matrices",  // also embeddings and head, whose rows tp shards
            "qwen3",
            {{"optimizer.name", "muon"}, {"optimizer.lr", "0.01"}, {"optimizer.muon_exclude", "norm"}},
            {{.dp_shard = 2, .tp = 2}, {.dp_shard = 2, .pp = 2}}},
        OptimizerCase{
            "muon_original_scale",
            "qwen3",
            {{"optimizer.name", "muon"},
             {"optimizer.lr", "0.02"},
             {"optimizer.muon_scale", "original"},
             {"optimizer.nesterov", "false"},
             {"optimizer.param_groups", R"([{pattern = "mlp", lr_multiplier = 0.5, weight_decay = 0.01}])"}},
            {{.dp_replicate = 2, .dp_shard = 2}}}),
    [](const auto& test) { return test.param.name; });

// bfloat16 sums round differently in another order, so only a pure pipeline can have equal bits (MixedRuns in
// test/train/pipeline_test.cpp). But the first update of AdamW is as long as the learning rate, whatever the gradient.
// So results differ only where rounding changes the sign of a gradient, by twice the learning rate, and where one
// element in some thousands falls on the other side of the noise. With the noise of another element, a fifth of all
// weights would round differently.
constexpr double kRate = 1e-3;
const Overrides kStochastic = run_of(
    "qwen3",
    {{"training.dtype", "bfloat16"},
     {"optimizer.name", "stochastic_adamw"},
     {"optimizer.lr", "1e-3"},
     {"lr_scheduler.warmup_steps", "0"}});

std::map<std::string, at::Tensor> weights_after(int64_t steps, const Mesh& mesh) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), joined(kStochastic, {{"training.steps", std::to_string(steps)}}));
  train_on(mesh, config);
  return testing::tensors(testing::checkpoint(config, steps), "model");
}

TEST(StochasticAdamW, RoundsAnElementByTheSameNoiseOnEveryMesh) {
  const auto wanted = weights_after(1, {});
  testing::expect_moved(testing::initial_weights(kStochastic), wanted);
  for (const Mesh& mesh : kMeshes) {
    SCOPED_TRACE(mesh.name());
    double differing = 0, all = 0;
    for (const auto& [name, found] : weights_after(1, mesh)) {
      const at::Tensor a = wanted.at(name).to(at::kDouble), b = found.to(at::kDouble);
      differing += a.ne(b).sum().item<double>();
      all += static_cast<double>(a.numel());
      const at::Tensor most = 2 * kRate + at::maximum(a.abs(), b.abs()) / 128;  // and one unit in the last place
      EXPECT_TRUE((a - b).abs().le(most).all().item<bool>()) << name;
    }
    EXPECT_LE(differing, 0.01 * all);
  }
}

// In ten steps, different roundings add up like a random walk: to some 3 % of the total update of all weights.
TEST(StochasticAdamW, TrainsLikeOneDevice) {
  const auto before = testing::initial_weights(kStochastic), wanted = weights_after(10, {});
  testing::expect_moved(before, wanted);
  const auto square = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.to(at::kDouble) - b.to(at::kDouble)).square().sum().item<double>();
  };
  for (const Mesh& mesh : {Mesh{.dp_replicate = 2, .dp_shard = 2}, Mesh{.tp = 2}}) {
    SCOPED_TRACE(mesh.name());
    double error = 0, way = 0;
    for (const auto& [name, found] : weights_after(10, mesh)) {
      error += square(found, wanted.at(name));
      way += square(wanted.at(name), before.at(name));
    }
    EXPECT_LE(std::sqrt(error), 0.1 * std::sqrt(way));
  }
}

}  // namespace
}  // namespace lehr::train

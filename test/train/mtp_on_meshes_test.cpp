// Runs with multi-token prediction on meshes and in pipelines equal one device.
#include <gmock/gmock.h>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Case;
using testing::every_nth;
using testing::expect_equal;
using testing::family;
using testing::Folder;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::tiny_run;
using testing::train_on;

// Four layers for pipelines of up to four stages, and few sequences per step, since the runs are many. The suffix
// "_tied" asks for tied embeddings.
Overrides run_of(const std::string& model, const Overrides& more = {}) {
  const bool tied = model.ends_with("_tied");
  const std::string name = tied ? model.substr(0, model.size() - 5) : model;
  Overrides overrides = family(name);
  for (const auto& entry : Overrides{
           {"training.mtp_loss_coef", "0.3"},
           {"training.global_batch_size", "4"},
           {"model.args.num_nextn_predict_layers", name == "deepseek_v3" ? "2" : "1"},
           {"model.args.num_hidden_layers", "4"},
           {"model.args.tie_word_embeddings", tied ? "true" : "false"}}) {
    overrides.push_back(entry);
  }
  return testing::joined(overrides, more);
}

Overrides schedule(const std::string& name, const std::string& stages_per_rank) {
  return {
      {"parallelism.pipeline_parallel_schedule", name},
      {"parallelism.pipeline_parallel_stages_per_rank", stages_per_rank}};
}

const Overrides kOncePerStep{
    {"parallelism.fsdp_reduce_each_microbatch", "false"}, {"parallelism.fsdp_reshard_after_forward", "always"}};
const Overrides kKept{{"parallelism.fsdp_reshard_after_forward", "never"}, {"activation_checkpoint.mode", "none"}};
const Overrides kOperators{
    {"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", "\"op\""}};

// Without LEHR_ALL_MESHES=1, each family has every second of the meshes that all families have.
std::vector<Case> cases() {
  std::vector<Case> found;
  size_t first = 0;
  for (const std::string name : {"deepseek_v3", "glm4_moe", "qwen3_next"}) {
    const std::vector<Case> of_family{
        {name, {.dp_shard = 2, .ep = 2}},
        {name, {.cp = 2}},
        {name, {.tp = 2}},
        {name, {.dp_replicate = 2, .cp = 2, .ep = 2}},
        {name, {.pp = 2}, "_1F1B"}};
    for (const Case& one : every_nth(2, of_family, first++ % 2)) {
      found.push_back(one);
    }
  }
  if (testing::all_meshes()) {  // other meshes of what follows
    for (const Case& one : std::vector<Case>{
             {"deepseek_v3", {.dp_replicate = 2}},
             {"deepseek_v3", {.dp_shard = 2}, "_once", kOncePerStep},
             {"deepseek_v3", {.dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}},
             {"deepseek_v3_tied", {.dp_shard = 2}},
             {"deepseek_v3_tied", {.pp = 2}, "_1F1B"}}) {
      found.push_back(one);
    }
  }
  for (const Case& one : std::vector<Case>{
           {"deepseek_v3", {.dp_shard = 2}, "_kept", kKept},
           {"deepseek_v3", {.dp_shard = 2, .tp = 2}, "_operators", kOperators},
           {"deepseek_v3", {.dp_shard = 2}, "_offload", {{"parallelism.fsdp_cpu_offload", "true"}}},
           {"deepseek_v3_tied", {.tp = 2, .ep = 2}},
           {"deepseek_v3_tied", {.dp_shard = 2, .pp = 2}, "_interleaved", schedule("Interleaved1F1B", "2")},
           {"deepseek_v3", {.pp = 2}, "_v", schedule("ZBVZeroBubble", "2")},
           {"deepseek_v3", {.dp_shard = 2, .pp = 2}, "_once", kOncePerStep},
           {"deepseek_v3", {.cp = 2, .pp = 2}, "_zero_bubble", schedule("ZBH1", "1")},
           {"deepseek_v3", {.tp = 2, .pp = 2}, "_dual", schedule("DualPipeV", "2")}}) {
    found.push_back(one);
  }
  return found;
}

const Outcome& alone(const std::string& model) {
  static std::map<std::string, Outcome> outcomes;
  const auto found = outcomes.find(model);
  if (found != outcomes.end()) {
    return found->second;
  }
  const Folder folder;
  const auto one_device = tiny_run(folder.path(), run_of(model));
  testing::train(one_device);
  return outcomes[model] = outcome_of(one_device);
}

class MtpOnMeshes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Runs, MtpOnMeshes, ::testing::ValuesIn(cases()), [](const auto& one) {
  return ::testing::PrintToString(one.param);
});

TEST_P(MtpOnMeshes, EqualOneDevice) {
  const auto& [model, mesh, name, overrides] = GetParam();
  const Outcome& wanted = alone(model);
  ASSERT_FALSE(wanted.curves.at("mtp_loss").empty());
  const Folder folder;
  const auto config = tiny_run(folder.path(), run_of(model, overrides));
  train_on(mesh, config);
  expect_equal(wanted, outcome_of(config));
}

// The teacher's comparison and the modules' losses are one call of the head, whose weights FSDP unshards for it.
TEST(MtpWithATeacher, OnMeshesAndInPipelinesEqualsOneDevice) {
  const Folder of_teacher;
  Overrides of_four_layers = family("qwen3");
  of_four_layers.emplace_back("model.args.num_hidden_layers", "4");
  const auto teacher = tiny_run(of_teacher.path(), of_four_layers);
  testing::train(teacher);
  const Overrides more{
      {"distillation.teacher", "\"" + testing::checkpoint(teacher, testing::kSteps).string() + "\""},
      {"distillation.cosine_weight", "0.7"}};
  const Folder of_one;
  const auto one_device = tiny_run(of_one.path(), run_of("deepseek_v3", more));
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device);
  ASSERT_FALSE(wanted.curves.at("mtp_loss").empty());
  for (const auto& [mesh, overrides] : std::vector<std::pair<Mesh, Overrides>>{
           {{.dp_shard = 2, .tp = 2}, {}},
           {{.dp_shard = 2, .pp = 2}, {}},
           {{.tp = 2, .pp = 2}, schedule("DualPipeV", "2")},
           {{.cp = 2, .pp = 2}, schedule("ZBH1", "1")}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    Overrides all = more;
    const auto config = tiny_run(folder.path(), run_of("deepseek_v3", testing::joined(all, overrides)));
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config));
  }
}

// Between them the modules' weights and their optimizer state move from the last stage to one device.
TEST(MtpOnMeshesOfTwoKinds, ContinueLikeOneDevice) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), run_of("deepseek_v3"));
  train_on({.dp_shard = 2, .pp = 2}, config, testing::kSteps / 2);
  train_on({.dp_shard = 2, .tp = 2, .ep = 2}, config);
  expect_equal(alone("deepseek_v3"), outcome_of(config));
}

TEST(MtpOnMeshesOfTwoKinds, MoveEveryMatrixOfTheModules) {
  Overrides start = run_of("deepseek_v3");
  const auto before = testing::initial_weights(start);
  std::map<std::string, at::Tensor> after = alone("deepseek_v3").tensors, modules;
  for (const auto& [name, value] : before) {
    if (name.starts_with("model.layers.4.") || name.starts_with("model.layers.5.")) {
      modules[name] = value;
    }
  }
  EXPECT_GT(modules.size(), 60U);
  testing::expect_moved(modules, after);
}

}  // namespace
}  // namespace lehr::train

// Runs whose loss reads snapshots of hidden states: on a mesh they equal one device.
#include <gmock/gmock.h>

#include "test/base/error_of.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::family;
using testing::Folder;
using ::testing::HasSubstr;
using testing::Mesh;

// The usual loss, and the squares of each layer's mean over the tokens with an even label.
class SnapshotTask : public CausalLMTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override {
    nn::ModelInputs inputs = CausalLMTask::build_forward_inputs(batch);
    inputs.hidden_states_agg_mask = batch.at("labels").remainder(2).eq(0);  // (B, T)
    return inputs;
  }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    const at::Tensor& snapshot = outputs.hidden_states_snapshot;  // (l, B, H)
    return CausalLMTask::compute_loss(outputs, batch) + snapshot.square().sum();
  }
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch&) const override {
    return {{"accuracy", outputs.hidden_states_snapshot.detach().square().sum()}};  // a curve that outcomes have
  }
};

TrainSpecs specs_with_snapshots() {
  TrainSpec spec{.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense};
  spec.build.task = [](const TrainConfig&) { return std::make_unique<SnapshotTask>(); };
  spec.build.model =
      [](const TrainConfig& config, const descriptor::ModelArgs& args, const pipeline::PipelineStageInfo& stage) {
        return args.build(
            {.stage = stage,
             .hidden_states_snapshot_mode = nn::HiddenStatesAggregationMode::mean,
             .checkpointing = config.activation_checkpoint.policy()});
      };
  TrainSpecs list;
  list.add(std::move(spec));
  return list;
}

void run_on(const Mesh& mesh, const TrainConfig& config, mesh::Transport* transport = nullptr) {
  if (mesh.world() > 1 && transport == nullptr) {
    mesh::run_ranks(
        mesh.world(),
        [&](mesh::Transport& rank) { run_on(mesh, testing::with_degrees(config, mesh), &rank); },
        std::chrono::seconds(60));
    return;
  }
  Logger quiet("", true);
  const auto list = specs_with_snapshots();
  Trainer(config, {.specs = list, .log = quiet, .transport = transport}).run();
}

Overrides run_of(const Overrides& more = {}) {
  Overrides overrides = family("qwen3");
  overrides.insert(
      overrides.end(),
      {{"validation.enable", "false"},  // in a pipeline a validation has no snapshots (TrainTask::compute_loss)
       {"data.validation_fraction", "0"},
       {"model.args.num_hidden_layers", "4"}});
  return testing::joined(overrides, more);
}

TEST(SnapshotsOnMeshes, EqualOneDevice) {
  const Folder one;
  const auto alone = testing::tiny_run(one.path(), run_of());
  run_on({}, alone);
  const auto wanted = testing::outcome_of(alone);
  ASSERT_EQ(wanted.curves.at("accuracy").size(), testing::kSteps);
  const std::vector<std::pair<Mesh, testing::Schedule>> cases{
      {{.dp_replicate = 2, .dp_shard = 2}, {"1F1B", 1}},
      {{.tp = 2}, {"1F1B", 1}},
      {{.dp_shard = 2, .tp = 4}, {"1F1B", 1}},
      {{.pp = 2}, {"GPipe", 1}},
      {{.tp = 2, .pp = 2}, {"1F1B", 1}},
      {{.pp = 2}, {"ZBVZeroBubble", 2}},
      {{.dp_shard = 2, .tp = 2, .pp = 2}, {"Interleaved1F1B", 2}}};
  for (const auto& [mesh, schedule] : cases) {
    SCOPED_TRACE(mesh.name() + " " + schedule.name);
    const Folder folder;
    const auto config = testing::tiny_run(folder.path(), run_of(mesh.pp > 1 ? testing::of(schedule) : Overrides{}));
    run_on(mesh, config);
    testing::expect_equal(wanted, testing::outcome_of(config));
  }
}

TEST(SnapshotsOnMeshes, AreRefusedWithContextParallelism) {
  const Folder folder;
  const auto config = testing::tiny_run(folder.path(), run_of());
  EXPECT_THAT(
      any_error::error_of([&] { run_on({.cp = 2}, config); }),
      HasSubstr("parallelism.context_parallel_degree: a snapshot of hidden states averages whole sequences"));
  EXPECT_FALSE(std::filesystem::exists(config.job.dump_folder));
}

}  // namespace
}  // namespace lehr::train

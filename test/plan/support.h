// Shared code of the tests of plans.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/plan/stage_run.h"
#include "test/train/support.h"

namespace lehr::plan::testing {

/// A small model, but large enough that tensors outweigh everything else; `changes` override its other settings.
inline Overrides model_of(const std::string& name, const Overrides& changes = {}) {
  Overrides overrides{
      {"model.name", name},
      {"model.args.hidden_size", "64"},
      {"model.args.intermediate_size", "160"},
      {"model.args.num_hidden_layers", "4"},
      {"model.args.num_attention_heads", "4"},
      {"model.args.num_key_value_heads", "2"},
      {"model.args.head_dim", "16"},
      {"model.args.vocab_size", "512"},
      {"training.local_batch_size", "1"},
      {"training.seq_len", "256"}};
  if (name == "deepseek_v3") {
    overrides.emplace_back("model.args.num_key_value_heads", "4");
  }
  if (name == "qwen3_moe" || name == "deepseek_v3" || name == "glm4_moe" || name == "qwen3_next" || name == "gpt_oss") {
    for (const auto& entry : Overrides{
             {"model.args.num_experts", "8"},
             {"model.args.num_experts_per_tok", "2"},
             {"model.args.moe_intermediate_size", "48"}}) {
      overrides.push_back(entry);
    }
  }
  return train::testing::joined(overrides, changes);
}

/// The config of a run, its builders, and the shape of its model.
struct Planned {
  explicit Planned(const Overrides& overrides)
      : config(train::testing::tiny_run(folder.path(), overrides)),
        list(train::testing::specs()),
        spec(list.at(config.model)),
        args(spec.build.model_args(config, spec.family, *spec.build.tokenizer(config))) {}

  StageMeasurement on_meta(const StagePlace& place = {}) const { return measure_stage(config, spec, *args, place); }

  /// The same measurement with real memory and numbers. Other ranks are fake, as in measure_stage, so that nothing
  /// depends on timing.
  StageMeasurement on_cpu(int64_t ranks = 1, const StagePlace& place = {}) const {
    const int64_t rank =
        place.rank_of_stage[static_cast<size_t>(place.stage)] * ranks / config.parallelism.pipeline_parallel_degree;
    const auto transport = mesh::fake_transport(rank, ranks);
    SeenCollectives none;
    return measure_run(config, spec, *args, place, at::kCPU, transport.get(), none);
  }

  train::testing::Folder folder;
  train::TrainConfig config;
  train::TrainSpecs list;
  const train::TrainSpec& spec;
  std::unique_ptr<descriptor::ModelArgs> args;
};

/// The bytes of a measurement by name.
inline std::vector<std::pair<std::string, int64_t>> bytes_of(const StageMeasurement& m) {
  return {
      {"parameters", m.parameter_bytes},
      {"compute copies", m.compute_copy_bytes},
      {"gradients", m.gradient_bytes},
      {"whole gradients", m.whole_gradient_bytes},
      {"optimizer", m.optimizer_bytes},
      {"gathered peak", m.gathered_peak},
      {"gathered after forward", m.gathered_after_forward},
      {"batch", m.batch_bytes},
      {"boundary", m.boundary_bytes},
      {"forward kept", m.forward.kept},
      {"forward peak", m.forward.peak},
      {"backward peak", m.backward.peak},
      {"backward_input kept", m.backward_input.kept},
      {"backward_input peak", m.backward_input.peak},
      {"backward_weight peak", m.backward_weight.peak},
      {"first backward peak", m.first_backward_peak},
      {"last backward peak", m.last_backward_peak},
      {"only backward peak", m.only_backward_peak}};
}

/// Memory at rest and saved activations equal those of a run except for a few scalars. Peaks are within 4 %: on meta,
/// autograd accumulates gradients into a third tensor; on the CPU, a sum of two dtypes copies one operand; and
/// compilers differ in the order in which they evaluate arguments.
inline void expect_same_bytes(const StageMeasurement& predicted, const StageMeasurement& counted) {
  const auto found = bytes_of(predicted), wanted = bytes_of(counted);
  for (size_t i = 0; i < found.size(); ++i) {
    const double tolerance = found[i].first.ends_with("peak") ? 0.04 : 0.0005;
    EXPECT_NEAR(
        static_cast<double>(found[i].second),
        static_cast<double>(wanted[i].second),
        tolerance * static_cast<double>(wanted[i].second))
        << found[i].first;
  }
}

}  // namespace lehr::plan::testing

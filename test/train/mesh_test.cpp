// The equality law of meshes: however a run is spread over ranks, it computes what one device computes.
//
// In float64, over ten whole training steps with accumulation, clipping, packed documents and activation checkpointing.
// Sums are taken in another order, which costs some 1e-16 of each; ten steps of AdamW amplify that (the update divides
// by the root of a mean of squares), and 1e-10 relative leaves room for it.
#include <gmock/gmock.h>

#include <mutex>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/metric/metrics_log.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;
using Overrides = std::vector<std::pair<std::string, std::string>>;

constexpr double kTolerance = 1e-10;

struct Mesh {
  int64_t dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, ep = 1;
  int64_t world() const { return dp_replicate * dp_shard * cp * tp; }
  std::string name() const { return fmt::format("dpr{}_dps{}_cp{}_tp{}_ep{}", dp_replicate, dp_shard, cp, tp, ep); }
};

// All meshes of at most eight ranks with degrees 1, 2 and 4.
std::vector<Mesh> meshes(bool experts) {
  const std::vector<int64_t> degrees{1, 2, 4};
  std::vector<Mesh> found;
  for (const int64_t dpr : degrees) {
    for (const int64_t dps : degrees) {
      for (const int64_t cp : degrees) {
        for (const int64_t tp : degrees) {
          for (const int64_t ep : experts ? degrees : std::vector<int64_t>{1}) {
            const Mesh mesh{dpr, dps, cp, tp, ep};
            if (mesh.world() > 1 && mesh.world() <= 8 && dps * cp * tp % ep == 0) {
              found.push_back(mesh);
            }
          }
        }
      }
    }
  }
  return found;
}

Overrides family(const std::string& name) {
  Overrides overrides{
      {"model.args.num_attention_heads", "8"},
      {"model.args.num_key_value_heads", "4"},
      {"model.args.head_dim", "4"},
      {"training.dtype", "float64"},
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "16"},
      {"training.steps", "10"},
      {"training.max_norm", "0.5"},
      {"activation_checkpoint.mode", "full"},
      {"checkpoint.interval", "10"}};
  if (name == "llama3") {
    overrides.emplace_back("model.name", "llama3");
  } else if (name == "qwen3_moe") {
    for (const auto& entry : Overrides{
             {"model.name", "qwen3_moe"},
             {"model.args.num_experts", "8"},
             {"model.args.num_experts_per_tok", "2"},
             {"model.args.moe_intermediate_size", "8"},
             {"model.args.expert_bias", "true"},
             {"training.router_aux_loss_coef", "0.01"},
             {"training.router_z_loss_coef", "0.001"}}) {
      overrides.push_back(entry);
    }
  }
  return overrides;
}

// Trains on that mesh, ranks as threads.
void train_on(const Mesh& mesh, const TrainConfig& one_device) {
  TrainConfig config = one_device;
  config.parallelism.data_parallel_replicate_degree = mesh.dp_replicate;
  config.parallelism.data_parallel_shard_degree = mesh.dp_shard;
  config.parallelism.context_parallel_degree = mesh.cp;
  config.parallelism.tensor_parallel_degree = mesh.tp;
  config.parallelism.expert_parallel_degree = mesh.ep;
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        Logger quiet("", true);
        const auto list = testing::specs();
        Trainer trainer(config, {.specs = list, .log = quiet, .transport = &transport});
        trainer.run();
      },
      std::chrono::seconds(60));
}

// What a run leaves behind.
struct Outcome {
  std::map<std::string, std::vector<double>> curves;
  std::map<std::string, at::Tensor> tensors;
};

Outcome outcome_of(const TrainConfig& config) {
  const std::filesystem::path folder = config.job.dump_folder;
  Outcome outcome;
  for (const char* key :
       {"loss", "grad_norm", "validation_loss", "load_balancing_loss", "router_z_loss", "expert_load_max"}) {
    outcome.curves[key] = metric::read_metric(folder / "metrics.jsonl", key).values;
  }
  for (const char* stem : {"model", "optimizer"}) {
    const state::WeightReader reader(folder / "checkpoints/step-10", stem);
    for (const auto& name : reader.names()) {
      outcome.tensors[name] = reader.tensor(name).clone();
    }
  }
  return outcome;
}

void expect_equal(const Outcome& wanted, const Outcome& found) {
  for (const auto& [key, values] : wanted.curves) {
    ASSERT_EQ(found.curves.at(key).size(), values.size()) << key;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(found.curves.at(key)[i], values[i], kTolerance * std::abs(values[i])) << key << " " << i;
    }
  }
  ASSERT_EQ(found.tensors.size(), wanted.tensors.size());
  for (const auto& [name, value] : wanted.tensors) {
    const at::Tensor other = found.tensors.at(name);
    ASSERT_EQ(other.sizes(), value.sizes()) << name;
    const double scale = value.to(at::kDouble).abs().max().item<double>();
    const double error = (other.to(at::kDouble) - value.to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(error, kTolerance * scale) << name;
  }
}

class EveryMesh : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, EveryMesh, ::testing::Values("qwen3", "qwen3_moe", "llama3"), [](const auto& info) {
  return info.param;
});

TEST_P(EveryMesh, ComputesWhatOneDeviceComputes) {
  const Folder alone;
  const auto one_device = tiny_run(alone.path(), family(GetParam()));
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device);
  for (const Mesh& mesh : meshes(GetParam() == "qwen3_moe")) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = tiny_run(folder.path(), family(GetParam()));
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config));
    if (HasFailure()) {
      break;  // the others would say the same at length
    }
  }
}

}  // namespace
}  // namespace lehr::train

// Runs with different numbers of threads.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "lehr/metric/metrics_log.h"
#include "lehr/ops/matmul/gemm.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::checkpoint;
using testing::expect_same_bits;
using testing::Folder;
using testing::tensors;
using testing::tiny_run;
using testing::train;

// Restores the global settings that the runs change.
class Settings {
 public:
  ~Settings() {
    at::set_num_threads(threads_);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }

 private:
  int threads_ = at::get_num_threads();
};

// Sizes at which operators use several threads.
TEST(Threads, TheirNumberDoesNotChangeTheBits) {
  const Settings settings;
  for (const char* name : {"qwen3", "qwen3_moe"}) {
    for (const char* type : {"float32", "bfloat16"}) {
      const at::Tensor matrix = at::ones({1, 1}, std::string_view(type) == "float32" ? at::kFloat : at::kBFloat16);
      if (!ops::gemm_takes(matrix, matrix)) {
        continue;  // a library computes the matmuls
      }
      std::map<std::string, at::Tensor> weights;
      std::vector<double> losses;
      for (const int used : {1, 3}) {
        at::set_num_threads(used);
        const Folder folder;
        Overrides overrides = {
            {"model.name", name},
            {"model.args.hidden_size", "96"},
            {"model.args.num_attention_heads", "6"},
            {"model.args.num_key_value_heads", "3"},
            {"model.args.head_dim", "32"},
            {"training.mixed_precision_param", type},
            {"training.seq_len", "128"},
            {"training.steps", "3"},
            {"lr_scheduler.warmup_steps", "1"},
            {"validation.enable", "false"},
            {"debug.deterministic", "true"}};
        if (std::string_view(name) == "qwen3_moe") {
          overrides.insert(
              overrides.end(),
              {{"model.args.num_experts", "6"},
               {"model.args.num_experts_per_tok", "2"},
               {"model.args.moe_intermediate_size", "40"}});
        }
        const auto config = tiny_run(folder.path(), overrides);
        train(config);
        const auto found = tensors(checkpoint(config, 3), "model");
        const auto log = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
        const auto values = metric::read_metric(log, "loss").values;
        if (used == 1) {
          weights = found;
          losses = values;
          continue;
        }
        EXPECT_EQ(values, losses) << name << ", " << type << " on " << used << " threads";
        expect_same_bits(found, weights);
      }
    }
  }
}

}  // namespace
}  // namespace lehr::train

// The model and the optimizer of the benchmarks, on one device or fully sharded over the ranks that a launcher started.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lehr/base/config.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/mesh/transport.h"
#include "lehr/optim/adamw.h"
#include "lehr/state/state_map.h"
#include "lehr/train/ranks.h"

namespace lehr::bench {

/// Whose folders benchmarks read.
descriptor::ModelFamilies families();

/// What a benchmark trains or saves: AdamW with lr 3e-4, betas 0.9 and 0.95, eps 1e-8, decay 0.1 on every parameter.
class BenchModel {
 public:
  struct Options {
    std::string folder;  ///< With config.json and model.safetensors.
    std::string dtype;   ///< fp32; bf16: all in bfloat16; amp: float32 weights and sums, bfloat16 arithmetic.
    bool random_weights = false;
    int64_t remake_products = 2;  ///< n of activation_checkpoint.selective_ac_option = "op n"; 0: none.
  };
  BenchModel(const Options& options, mesh::Transport& transport);

  at::ScalarType compute_type() const { return dtype_ == "fp32" ? at::kFloat : at::kBFloat16; }
  const state::StateMap& map() const { return map_; }

  train::Ranks ranks;
  std::unique_ptr<descriptor::ModelArgs> args;
  std::shared_ptr<nn::Model> model;
  std::vector<shard::FullySharded> sharded;  ///< One; none on one device.
  std::unique_ptr<optim::AdamW> optimizer;   ///< Its state has memory.

 private:
  std::string dtype_;
  state::StateMap map_;
};

/// A number of every rank, in the order of ranks; collective.
std::vector<double> of_all_ranks(const train::Ranks& ranks, double mine);

/// Fills a program's options; false if --help was there, which it has shown then. Throws a usage error for wrong ones,
/// and for what belongs to none, as "false" behind a flag.
bool read_options(int argc, char** argv, const ConfigObject& options);

/// Most memory that this process had so far, in MB.
double peak_rss_mb();

}  // namespace lehr::bench

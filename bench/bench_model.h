// Model and optimizer of the benchmarks, on one device or fully sharded over the ranks of a launcher.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lehr/config/config.h"
#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/memory/caching_allocator.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/transport.h"
#include "lehr/optim/adamw.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/state_map.h"
#include "lehr/train/ranks.h"

namespace lehr::bench {

/// Returns the families whose model folders benchmarks can read.
descriptor::ModelFamilies families();

/// A model with its optimizer: AdamW with lr 3e-4, betas 0.9 and 0.95, eps 1e-8, decay 0.1 on every parameter.
class BenchModel {
 public:
  struct Options {
    std::string folder;  ///< Folder with config.json and model.safetensors.
    std::string dtype;   ///< fp32; bf16: all in bfloat16; amp: float32 weights and sums, bfloat16 arithmetic.
    bool random_weights = false;
    int64_t recompute_matmuls = 2;  ///< n of activation_checkpoint.selective_ac_option = "op n"; 0: none.
  };
  BenchModel(const Options& options, mesh::Transport& transport);

  at::ScalarType compute_type() const { return dtype_ == "fp32" ? at::kFloat : at::kBFloat16; }
  const state::StateMap& map() const { return map_; }
  /// Returns the contents of a run's checkpoint: weights and optimizer state.
  state::CheckpointContents checkpoint(int64_t step) const;

  train::Ranks ranks;
  std::unique_ptr<descriptor::ModelArgs> args;
  std::shared_ptr<nn::Model> model;
  std::vector<shard::FullySharded> sharded;  ///< One element; empty on one device.
  std::unique_ptr<optim::AdamW> optimizer;   ///< Its state is allocated.

 private:
  std::string dtype_;
  state::StateMap map_;
};

/// Returns `mine` of every rank, in the order of ranks. All ranks must call it.
std::vector<double> of_all_ranks(const train::Ranks& ranks, double mine);

/// Returns the numbers as a list for JSON.
Node list_of(const std::vector<double>& values);

/// Parses a program's options. Returns false if --help was given, after printing the help. Throws a usage error for
/// wrong options, and for arguments that belong to no option, such as "false" after a flag.
bool read_options(int argc, char** argv, const ConfigObject& options);

/// Returns the peak resident memory of this process in MB.
double peak_rss_mb();

/// Calls run(options) with a program's options, and returns the exit code. Reports an error.
template <class Options, class Run>
int run_program(int argc, char** argv, const Run& run) {
  keep_tensor_memory();
  try {
    Options options;
    if (read_options(argc, argv, ConfigObject::of(options))) {
      run(options);
    }
    return 0;
  } catch (const std::exception& error) {
    mesh::report_failure(error);
    return 1;
  }
}

/// The same for one rank of a launcher: calls run(options, transport).
template <class Options, class Run>
int run_rank(int argc, char** argv, const Run& run) {
  return run_program<Options>(argc, argv, [&](const Options& options) {
    const auto transport = mesh::connect_ranks();
    mesh::run_connected(*transport, [&] { run(options, *transport); });
  });
}

}  // namespace lehr::bench

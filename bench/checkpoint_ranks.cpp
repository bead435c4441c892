// Saves and loads a whole training state (weights and AdamW's moments) as one rank of a launcher, each with its shards,
// and prints one JSON line. bench/peer_dcp.py does the same with torch.distributed.checkpoint.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/bench_model.h"
#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/integrity.h"
#include "lehr/state/weights.h"
#include "lehr/train/rank_share.h"
#include "lehr/train/store_coordinator.h"

namespace {
using namespace lehr;

struct Options {
  std::string model;
  std::string folder;
  int64_t runs = 3;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and model.safetensors to start from.");
    v.required("folder", folder, "Folder to write checkpoints to, on a disk that all ranks share.");
    v.optional("runs", runs, "Number of saves and loads.", positive());
  }
};

void barrier(const train::Ranks& ranks) {
  ranks.any(false);
}

// Returns the seconds between a barrier before the work and one after it.
template <class Work>
double seconds_of(const train::Ranks& ranks, const Work& work) {
  barrier(ranks);
  const auto begin = std::chrono::steady_clock::now();
  work();
  barrier(ranks);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Reads all files through the page cache, where they stay.
void read_all(const std::filesystem::path& folder) {
  std::vector<char> piece(size_t{8} << 20);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(piece.data(), static_cast<std::streamsize>(piece.size()))) {
    }
  }
}

void run(const Options& options, mesh::Transport& transport) {
  at::set_num_threads(1);
  bench::BenchModel bench({.folder = options.model, .dtype = "fp32"}, transport);
  const auto coordinator = train::make_coordinator(bench.ranks.context(), "checkpoints");
  state::CheckpointStore store(options.folder);
  std::vector<double> saves;
  std::vector<double> loads;
  std::vector<double> checked_loads;
  std::vector<double> cached_loads;
  std::vector<double> cached_checked_loads;
  int64_t bytes = 0;
  double checked = 0;  // the sum of the weights, which a load must restore
  for (int64_t i = 1; i <= options.runs; ++i) {
    saves.push_back(seconds_of(bench.ranks, [&] {
      const state::CheckpointContents contents = bench.checkpoint(i);
      bytes = state::num_bytes(contents);
      write_checkpoint(store, contents, *coordinator);
    }));
    const auto parameter = nn::named_parameters(*bench.model).front().parameter;
    checked = parameter->value().sum().item<double>();
    {
      const at::NoGradGuard no_grad;
      parameter->value().zero_();
    }
    const auto load = [&] {
      const state::WeightReader weights(store.path_of(i), "model", state::Reading::once);
      pretrained::load_weights(*bench.model, pretrained::checkpoint_map(*bench.args, weights), weights);
      const auto moments = train::share_of_optimizer(*bench.optimizer, *bench.model, bench.ranks.context());
      train::load_optimizer(
          *bench.optimizer,
          *bench.model,
          moments.all,
          state::WeightReader(store.path_of(i), "optimizer", state::Reading::once));
    };
    const auto checked_load = [&] {
      require(!state::find_damage(store.path_of(i), true, *coordinator), "step {}: the checkpoint is damaged", i);
      load();
    };
    // Saves and loads bypass the page cache, so the first load is from the disk.
    loads.push_back(seconds_of(bench.ranks, load));
    checked_loads.push_back(seconds_of(bench.ranks, checked_load));
    if (bench.ranks.is_main()) {
      read_all(store.path_of(i));
    }
    cached_loads.push_back(seconds_of(bench.ranks, load));
    cached_checked_loads.push_back(seconds_of(bench.ranks, checked_load));
    require(parameter->value().sum().item<double>() == checked, "step {}: the load did not restore the weights", i);
    barrier(bench.ranks);
    if (bench.ranks.is_main()) {
      std::filesystem::remove_all(store.path_of(i));
    }
  }
  const auto peaks = bench::of_all_ranks(bench.ranks, bench::peak_rss_mb());
  if (!bench.ranks.is_main()) {
    return;
  }
  Node report = Node::make_table();
  report.set("peer", Node("lehr"));
  report.set("ranks", Node(bench.ranks.world_size()));
  report.set("mb", Node(static_cast<double>(bytes) / 1e6));
  report.set("save_s", bench::list_of(saves));
  report.set("load_s", bench::list_of(loads));
  report.set("checked_load_s", bench::list_of(checked_loads));
  report.set("cached_load_s", bench::list_of(cached_loads));
  report.set("cached_checked_load_s", bench::list_of(cached_checked_loads));
  report.set("peak_rss_mb_of_ranks", bench::list_of(peaks));
  std::puts(to_json(report).c_str());
}
}  // namespace

int main(int argc, char** argv) {
  return bench::run_rank<Options>(argc, argv, run);
}

// Saves and loads weights from several ranks (threads), each with its shard of every matrix; reports seconds and bytes
// per second. LEHR_BENCH_DIR is the folder (default: the one for temporary files), LEHR_BENCH_MB the size (default:
// 1000).
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "lehr/mesh/thread_transport.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/integrity.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/weights.h"
#include "lehr/train/store_coordinator.h"

namespace lehr {
namespace {

namespace fs = std::filesystem;

int64_t megabytes() {
  const char* text = std::getenv("LEHR_BENCH_MB");
  return text == nullptr ? 1000 : std::atoll(text);
}

fs::path folder() {
  const char* text = std::getenv("LEHR_BENCH_DIR");
  return (text == nullptr ? fs::temp_directory_path() : fs::path(text)) / "lehr-checkpoint-bench";
}

constexpr int64_t kRows = 2048;
constexpr int64_t kColumns = 2048;  // float32: 16.8 MB per matrix

// The shards of a rank: chunk `rank` of dimension `dim` of every matrix.
state::CheckpointContents make_contents(int64_t rank, int64_t ranks, int64_t dim) {
  state::WeightSet set{.stem = "model", .tensors = {}};
  const int64_t matrices = std::max<int64_t>(1, megabytes() * 1'000'000 / (kRows * kColumns * 4));
  for (int64_t i = 0; i < matrices; ++i) {
    const std::string name = fmt::format("layers.{:04}.weight", i);
    Box box = whole_box({kRows, kColumns});
    box[static_cast<size_t>(dim)] = chunk(box[static_cast<size_t>(dim)], rank, ranks);
    set.all.push_back({.name = name, .dtype = state::DType::kF32, .shape = {kRows, kColumns}});
    set.parts.push_back({.name = name, .box = box, .tensor = at::rand(shape_of(box))});
  }
  return {.step = 1, .weights = {std::move(set)}};
}

void report(benchmark::State& bench) {
  bench.SetBytesProcessed(bench.iterations() * megabytes() * 1'000'000);
}

// Arguments: number of ranks, sharded dimension.
void BM_Save(benchmark::State& bench) {
  const int64_t ranks = bench.range(0);
  std::vector<state::CheckpointContents> contents;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    contents.push_back(make_contents(rank, ranks, bench.range(1)));
  }
  fs::remove_all(folder());
  for (auto _ : bench) {
    mesh::run_ranks(ranks, [&](mesh::Transport& transport) {
      train::StoreCoordinator coordinator(transport, "bench");
      state::CheckpointStore store(folder());
      write_checkpoint(store, contents[static_cast<size_t>(transport.rank())], coordinator);
    });
  }
  report(bench);
}
BENCHMARK(BM_Save)->Args({1, 0})->Args({2, 0})->Args({2, 1})->Unit(benchmark::kMillisecond)->UseRealTime();

// Checksums of all bytes, which a resumed run verifies.
void BM_Verify(benchmark::State& bench) {
  for (auto _ : bench) {
    mesh::run_ranks(bench.range(0), [&](mesh::Transport& transport) {
      train::StoreCoordinator coordinator(transport, "bench");
      if (state::find_damage(state::CheckpointStore(folder()).path_of(1), true, coordinator)) {
        bench.SkipWithError("save first");
      }
    });
  }
  report(bench);
}
BENCHMARK(BM_Verify)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_Load(benchmark::State& bench) {
  const int64_t ranks = bench.range(0);
  std::vector<state::CheckpointContents> targets;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    targets.push_back(make_contents(rank, ranks, bench.range(1)));
  }
  for (auto _ : bench) {
    mesh::run_ranks(ranks, [&](mesh::Transport& transport) {
      const state::WeightReader reader(state::CheckpointStore(folder()).path_of(1));
      const state::WeightSource source(reader);
      for (auto& part : targets[static_cast<size_t>(transport.rank())].weights[0].parts) {
        part.tensor.copy_(source.read(part.name, part.box));
      }
    });
  }
  report(bench);
}
BENCHMARK(BM_Load)->Args({1, 0})->Args({2, 0})->Args({2, 1})->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace lehr

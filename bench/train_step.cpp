// Times whole training steps on the work of all contenders of bench/compare.py, and prints one JSON line. If a
// launcher starts several ranks (lehr launch, torchrun), the run is fully sharded, and rank 0 prints for all.
//
// The work: forward, mean cross-entropy, backward, clipping at 1.0, AdamW (lr 3e-4, betas 0.9 and 0.95, eps 1e-8, decay
// 0.1 on every parameter). Tokens are splitmix64(seed * 2^32 + i) mod V, which every language can compute.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "bench/bench_model.h"
#include "lehr/base/error.h"
#include "lehr/base/fast_exit.h"
#include "lehr/config/json.h"
#include "lehr/state/async_checkpointer.h"
#include "lehr/train/run_peak.h"
#include "lehr/train/step.h"
#include "lehr/train/store_coordinator.h"

namespace {
using namespace lehr;

struct Options {
  std::string model;
  std::string dtype = "fp32";
  int64_t seq = 1024;
  int64_t batch = 1;
  int64_t steps = 5;
  int64_t warmup = 2;
  int64_t threads = 2;
  int64_t seed = 1234;
  bool random_weights = false;
  int64_t recompute_matmuls = 2;
  int64_t save_every = 0;
  std::string save_folder;
  bool measure_peak = false;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and model.safetensors to start from.");
    v.optional(
        "dtype",
        dtype,
        "fp32; bf16: all in bfloat16; amp: float32 weights, bfloat16 arithmetic.",
        one_of({"fp32", "bf16", "amp"}));
    v.optional("seq", seq, "Tokens per sequence.", positive());
    v.optional("batch", batch, "Sequences per rank.", positive());
    v.optional("steps", steps, "Timed steps.", positive());
    v.optional("warmup", warmup, "Steps before the timed ones.", at_least(0));
    v.optional("threads", threads, "CPU threads.", positive());
    v.optional("seed", seed, "Seed of the tokens.");
    v.optional("random_weights", random_weights, "Initialize weights at random instead of reading them.");
    v.optional(
        "recompute_matmuls",
        recompute_matmuls,
        "Recompute matmul outputs of every n-th layer in backward, as selective_ac_option = \"op n\"; 0: of none.",
        at_least(0));
    v.optional(
        "save_every",
        save_every,
        "Save asynchronously after the first step, and after the first of every N timed steps; 0: never.");
    v.optional("save_folder", save_folder, "Folder of these saves, on a disk that all ranks share.");
    v.optional(
        "measure_peak",
        measure_peak,
        "Measure after the steps what the CPU's registers execute, and report it with the model's FLOPs per token.");
  }
};

uint64_t splitmix(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Returns this rank's sequences of a step.
train::Batch make_batch(const Options& options, const train::RowShare& share, int64_t vocab_size, int64_t step) {
  at::Tensor ids = at::empty({options.batch, options.seq}, at::kLong);
  at::Tensor labels = at::empty_like(ids);
  const uint64_t count =
      64 * static_cast<uint64_t>(share.global * options.seq) + static_cast<uint64_t>(options.seq) + 2;
  const uint64_t span = count - static_cast<uint64_t>(options.seq) - 1;
  auto token = [&](uint64_t i) {
    return static_cast<int64_t>(
        splitmix(i + static_cast<uint64_t>(options.seed) * (uint64_t{1} << 32)) % static_cast<uint64_t>(vocab_size));
  };
  for (int64_t row = 0; row < options.batch; ++row) {
    const uint64_t first = static_cast<uint64_t>((step * share.global + share.first + row) * options.seq) % span;
    for (int64_t t = 0; t < options.seq; ++t) {
      ids.data_ptr<int64_t>()[row * options.seq + t] = token(first + static_cast<uint64_t>(t));
      labels.data_ptr<int64_t>()[row * options.seq + t] = token(first + static_cast<uint64_t>(t) + 1);
    }
  }
  const at::Tensor positions = at::arange(options.seq, at::kLong).unsqueeze(0).expand({options.batch, -1}).contiguous();
  return {{"input_ids", ids}, {"labels", labels}, {"position_ids", positions}};
}

// The CPU time of all threads of this process so far, including system time.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

// Saves the contents of a run's checkpoint: weights and optimizer state.
class Saves {
 public:
  Saves(const bench::BenchModel& bench, const std::string& folder)
      : bench_(bench),
        writer_(state::CheckpointStore(folder), 1, train::make_coordinator(bench.ranks.context(), "saves")) {}

  void save(int64_t step) { writer_.save(bench_.checkpoint(step)); }

  void wait() { writer_.wait(); }

  // Returns the seconds of every save: those that the loop waited, and those that the thread took.
  std::pair<std::vector<double>, std::vector<double>> finish() {
    writer_.wait();
    std::pair<std::vector<double>, std::vector<double>> seconds;
    while (const auto result = writer_.poll()) {
      require(result->ok(), "the save of step {} failed: {}", result->step, result->error);
      seconds.first.push_back(result->copy_seconds);
      seconds.second.push_back(result->write_seconds);
    }
    return seconds;
  }

 private:
  const bench::BenchModel& bench_;
  state::AsyncCheckpointer writer_;
};

void run(const Options& options, mesh::Transport& transport) {
  require(
      (options.save_every > 0) == !options.save_folder.empty(),
      "save_every and save_folder: expected both or none of them");
  at::set_num_threads(static_cast<int>(options.threads));
  bench::BenchModel bench(
      {.folder = options.model,
       .dtype = options.dtype,
       .random_weights = options.random_weights,
       .recompute_matmuls = options.recompute_matmuls},
      transport);
  const double start_mb = bench::peak_rss_mb();
  const train::RowShare share = bench.ranks.share(options.batch * bench.ranks.world_size());
  const train::CausalLMTask task;
  train::TrainStep step(
      *bench.model,
      task,
      *bench.optimizer,
      {.local_batch_size = options.batch,
       .max_norm = 1.0,
       .compute = bench.compute_type(),
       .ranks = &bench.ranks,
       .sharded = bench.sharded.empty() ? nullptr : &bench.sharded});
  std::unique_ptr<Saves> saves;
  if (options.save_every > 0) {
    saves = std::make_unique<Saves>(bench, options.save_folder);
  }
  std::vector<double> milliseconds;
  std::vector<double> losses;
  std::vector<double> norms;
  double cpu = 0;
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    if (i == options.warmup) {
      if (saves) {
        saves->wait();
      }
      cpu = cpu_seconds();
    }
    const train::Batch batch = make_batch(options, share, bench.args->vocab_size(), i);
    const auto begin = std::chrono::steady_clock::now();
    const train::StepResult result = step.run(batch, share.first, i + 1, 1.0);
    // The first save, which allocates the copies, is not timed.
    if (saves && (i == 0 || (i >= options.warmup && (i - options.warmup) % options.save_every == 0))) {
      saves->save(i + 1);
    }
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
    if (i >= options.warmup) {
      milliseconds.push_back(ms);
    }
  }
  if (saves) {
    saves->wait();  // the writer thread's CPU time counts
  }
  const auto cpus = bench::of_all_ranks(bench.ranks, cpu_seconds() - cpu);
  const auto [waited, written] = saves ? saves->finish() : std::pair<std::vector<double>, std::vector<double>>{};
  const auto peaks = bench::of_all_ranks(bench.ranks, bench::peak_rss_mb());
  const auto tensors = bench::of_all_ranks(bench.ranks, static_cast<double>(tensor_memory().peak) / 1e6);
  const auto starts = bench::of_all_ranks(bench.ranks, start_mb);
  const double peak_flops =
      options.measure_peak ? train::peak_flops_of_run(at::kCPU, bench.compute_type(), bench.ranks) : 0;
  if (!bench.ranks.is_main()) {
    return;
  }
  std::vector<double> sorted = milliseconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  Node report = Node::make_table();
  report.set("peer", Node("lehr"));
  report.set("dtype", Node(options.dtype));
  report.set("seq", Node(options.seq));
  report.set("batch", Node(share.global));
  report.set("ranks", Node(bench.ranks.world_size()));
  report.set("step_ms", bench::list_of(milliseconds));
  report.set("tokens_per_s", Node(static_cast<double>(options.seq * share.global) / median * 1000));
  report.set("peak_rss_mb", Node(std::accumulate(peaks.begin(), peaks.end(), 0.0)));
  report.set("peak_rss_mb_of_ranks", bench::list_of(peaks));
  report.set("large_tensors_mb_of_ranks", bench::list_of(tensors));
  report.set("rss_mb_before_steps", bench::list_of(starts));
  report.set(
      "gathered_mb",
      Node(bench.sharded.empty() ? 0.0 : static_cast<double>(bench.sharded.front().gathered_bytes_peak()) / 1e6));
  report.set("losses", bench::list_of(losses));
  report.set("grad_norms", bench::list_of(norms));
  if (options.measure_peak) {
    report.set("peak_flops", Node(peak_flops));
    report.set("flops_per_token", Node(bench.args->get_nparams_and_flops(options.seq).causal_flops_per_token));
  }
  report.set("cpu_s", Node(std::accumulate(cpus.begin(), cpus.end(), 0.0)));
  report.set("save_wait_s", bench::list_of(waited));
  report.set("save_write_s", bench::list_of(written));
  std::puts(to_json(report).c_str());
}
}  // namespace

int main(int argc, char** argv) {
  fast_exit(bench::run_rank<Options>(argc, argv, run));
}

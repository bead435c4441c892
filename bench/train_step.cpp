// Times whole training steps on the work that bench/compare.py gives to every contender, and prints one JSON line.
//
// The work: forward, mean cross-entropy, backward, clipping at 1.0, AdamW (lr 3e-4, betas 0.9 and 0.95, eps 1e-8, decay
// 0.1 on every parameter). Tokens are splitmix64(seed * 2^32 + i) mod V, so that any language can make the same ones.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/json.h"
#include "lehr/metric/throughput.h"
#include "lehr/model/llama3/spec.h"
#include "lehr/model/qwen3_dense/spec.h"
#include "lehr/optim/adamw.h"
#include "lehr/state/weights.h"
#include "lehr/train/step.h"
#include "lehr/train/weights.h"

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
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and model.safetensors to start from.");
    v.optional(
        "dtype",
        dtype,
        "fp32; bf16: all in bfloat16; amp: float32 weights, bfloat16 arithmetic.",
        one_of({"fp32", "bf16", "amp"}));
    v.optional("seq", seq, "Tokens in a row.", positive());
    v.optional("batch", batch, "Rows.", positive());
    v.optional("steps", steps, "Timed steps.", positive());
    v.optional("warmup", warmup, "Steps before them.", positive());
    v.optional("threads", threads, "CPU threads.", positive());
    v.optional("seed", seed, "Of the tokens.");
    v.optional("random_weights", random_weights, "Do not read weights.");
  }
};

uint64_t splitmix(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

train::Batch make_batch(const Options& options, int64_t vocab_size, int64_t step) {
  at::Tensor ids = at::empty({options.batch, options.seq}, at::kLong);
  at::Tensor labels = at::empty_like(ids);
  const uint64_t count =
      64 * static_cast<uint64_t>(options.batch * options.seq) + static_cast<uint64_t>(options.seq) + 2;
  const uint64_t span = count - static_cast<uint64_t>(options.seq) - 1;
  auto token = [&](uint64_t i) {
    return static_cast<int64_t>(
        splitmix(i + static_cast<uint64_t>(options.seed) * (uint64_t{1} << 32)) % static_cast<uint64_t>(vocab_size));
  };
  for (int64_t row = 0; row < options.batch; ++row) {
    const uint64_t first = static_cast<uint64_t>((step * options.batch + row) * options.seq) % span;
    for (int64_t t = 0; t < options.seq; ++t) {
      ids.data_ptr<int64_t>()[row * options.seq + t] = token(first + static_cast<uint64_t>(t));
      labels.data_ptr<int64_t>()[row * options.seq + t] = token(first + static_cast<uint64_t>(t) + 1);
    }
  }
  const at::Tensor positions = at::arange(options.seq, at::kLong).unsqueeze(0).expand({options.batch, -1}).contiguous();
  return {{"input_ids", ids}, {"labels", labels}, {"position_ids", positions}};
}

Node numbers(const std::vector<double>& values) {
  Node list = Node::make_list();
  for (const double value : values) {
    list.push_back(Node(value));
  }
  return list;
}

int run(const std::vector<std::string>& args) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(arguments_help(ConfigObject::of(options)).c_str(), stdout);
    return 0;
  }
  at::set_num_threads(static_cast<int>(options.threads));
  descriptor::ModelFamilies families;
  families.add(model::qwen3_dense_family());
  families.add(model::llama3_family());
  const auto shape = families.from_hf_folder(options.model);
  const auto model = shape->build({});
  nn::materialize(*model, at::kCPU, options.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  if (options.random_weights) {
    model->reset_parameters({.seed = 1});
  } else {
    const state::WeightReader reader(options.model);
    train::load_weights(*model, train::checkpoint_map(*shape, reader), reader);
  }
  optim::OptimizerConfig config;
  config.lr = 3e-4;
  config.beta2 = 0.95;
  config.weight_decay = 0.1;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    names.push_back(name);
  }
  optim::AdamW optimizer(config, names);
  const train::CausalLMTask task;
  train::TrainStep step(
      *model,
      task,
      optimizer,
      {.local_batch_size = options.batch,
       .max_norm = 1.0,
       .compute = options.dtype == "fp32" ? at::kFloat : at::kBFloat16});
  std::vector<double> milliseconds;
  std::vector<double> losses;
  std::vector<double> norms;
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    const train::Batch batch = make_batch(options, shape->vocab_size(), i);
    const auto begin = std::chrono::steady_clock::now();
    const train::StepResult result = step.run(batch, 0, i + 1, 1.0);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
    if (i >= options.warmup) {
      milliseconds.push_back(ms);
    }
  }
  std::vector<double> sorted = milliseconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  Node report = Node::make_table();
  report.set("peer", Node("lehr"));
  report.set("dtype", Node(options.dtype));
  report.set("seq", Node(options.seq));
  report.set("batch", Node(options.batch));
  report.set("step_ms", numbers(milliseconds));
  report.set("tokens_per_s", Node(static_cast<double>(options.seq * options.batch) / median * 1000));
  report.set("peak_rss_mb", Node(static_cast<double>(metric::process_memory().peak_resident) / 1e6));
  report.set("losses", numbers(losses));
  report.set("grad_norms", numbers(norms));
  std::puts(to_json(report).c_str());
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
  try {
    return run({argv + 1, argv + argc});
  } catch (const lehr::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
}

#include "bench/bench_model.h"

#include <cstdio>

#include "lehr/base/error.h"
#include "lehr/config/command_line.h"
#include "lehr/metric/throughput.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"
#include "lehr/train/rank_share.h"
#include "lehr/train/step.h"

namespace lehr::bench {

descriptor::ModelFamilies families() {
  descriptor::ModelFamilies all;
  all.add(model::qwen3_dense_family());
  all.add(model::qwen3_moe_family());
  all.add(model::llama3_family());
  all.add(model::deepseek_v3_family());
  all.add(model::mistral_family());
  return all;
}

BenchModel::BenchModel(const Options& options, mesh::Transport& transport)
    : ranks(train::ParallelismConfig{}, &transport), dtype_(options.dtype) {
  args = families().from_hf_folder(options.folder);
  model = args->build({.checkpointing = nn::ActivationCheckpointing::matmuls_of_every_nth(options.recompute_matmuls)});
  if (ranks.context() != nullptr) {
    const shard::ParallelizeOptions parallelize{
        .fully_shard = {.compute = compute_type(), .reduce = dtype_ == "bf16" ? at::kBFloat16 : at::kFloat}};
    const auto lay_out =
        args->model_type() == "qwen3_moe" ? model::parallelize_qwen3_moe : model::parallelize_qwen3_dense;
    sharded.push_back(lay_out(*ranks.context(), *model, parallelize));
  }
  nn::materialize(*model, at::kCPU, dtype_ == "bf16" ? at::kBFloat16 : at::kFloat);
  const state::WeightReader reader(options.folder);
  map_ = pretrained::checkpoint_map(*args, reader);
  if (options.random_weights) {
    model->reset_parameters({.seed = 1});
  } else {
    pretrained::load_weights(*model, map_, reader);
  }
  optim::OptimizerConfig config;
  config.lr = 3e-4;
  config.beta2 = 0.95;
  config.weight_decay = 0.1;
  std::vector<std::string> names;
  std::vector<optim::NamedParameter> trained;
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    names.push_back(name);
    trained.push_back({.name = name, .value = parameter->value(), .placement = train::placement_of(*parameter)});
  }
  optimizer = std::make_unique<optim::AdamW>(config, names);
  optimizer->allocate(trained);
}

state::CheckpointContents BenchModel::checkpoint(int64_t step) const {
  const auto weights = train::share_of_parameters(*model, map_, ranks.context());
  const auto moments = train::share_of_optimizer(*optimizer, *model, ranks.context());
  state::CheckpointContents contents{.step = step, .weights = {}};
  contents.weights.push_back({.tensors = {}, .all = weights.all, .parts = weights.parts});
  contents.weights.push_back({.stem = "optimizer", .tensors = {}, .all = moments.all, .parts = moments.parts});
  return contents;
}

std::vector<double> of_all_ranks(const train::Ranks& ranks, double mine) {
  std::vector<double> numbers(static_cast<size_t>(ranks.world_size()), 0.0);
  numbers[ranks.context() != nullptr ? static_cast<size_t>(ranks.context()->rank()) : 0] = mine;
  ranks.sum_over_world(at::from_blob(numbers.data(), {ranks.world_size()}, at::kDouble));
  return numbers;
}

Node list_of(const std::vector<double>& values) {
  Node list = Node::make_list();
  for (const double value : values) {
    list.push_back(Node(value));
  }
  return list;
}

bool read_options(int argc, char** argv, const ConfigObject& options) {
  const Arguments arguments = parse_arguments({argv + 1, argv + argc}, options);
  if (arguments.help) {
    std::fputs(arguments_help(options).c_str(), stdout);
    return false;
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "command line: \"{}\" belongs to no option; a flag's value is written --flag=false",
      arguments.positionals.empty() ? arguments.overrides.front().first : arguments.positionals.front());
  return true;
}

double peak_rss_mb() {
  return static_cast<double>(metric::process_memory().peak_resident) / 1e6;
}

}  // namespace lehr::bench

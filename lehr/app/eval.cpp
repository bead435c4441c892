// lehr eval CONFIG.toml --model DIR
#include <cmath>
#include <cstdio>

#include "lehr/app/command.h"
#include "lehr/app/model_and_data.h"
#include "lehr/base/error.h"
#include "lehr/config/command_line.h"
#include "lehr/config/json.h"
#include "lehr/train/device.h"
#include "lehr/train/load_on_ranks.h"
#include "lehr/train/mesh_rules.h"
#include "lehr/train/train_spec.h"
#include "lehr/train/validate.h"

namespace lehr::app {

namespace {
struct EvalOptions {
  std::optional<std::string> model;
  bool train_data = false;
  void fields(FieldVisitor& v) {
    v.optional("model", model, "Folder of a model or of adapters; unset: the newest checkpoint of the config's run.");
    v.optional(
        "train_data",
        train_data,
        "Evaluate one pass over the training data instead of the held-out data. In either case at most validation.steps "
        "batches are read.");
  }
};

Node measure(
    train::TrainConfig config, const EvalOptions& options, const train::TrainSpecs& specs, mesh::Transport* transport) {
  const train::Ranks ranks = ranks_of(config.parallelism, transport);
  ranks.require_same("config", to_toml(config));
  const at::Device device = train::choose_device(config.training.device, transport);
  if (options.train_data) {
    config.data.repeat = false;
    config.data.shuffle = false;
  }
  Logger log("", !ranks.is_main());
  ModelAndData found;
  const auto folder = folder_of_model(config, options.model, ranks);
  ranks.main_first([&] { found = open_model_and_data(config, folder, specs, log, ranks.is_main()); });
  require(
      options.train_data || found.data.validation,
      "lehr eval: the config has no held-out data; set data.validation_fraction or data.validation_path, or use "
      "--train-data");
  if (ranks.world_size() > 1) {
    train::check_model_on_mesh(config.training.seq_len, *found.model.args, ranks.context()->parameters());
    train::check_padding(config, ranks.context()->parameters());
  }
  if (ranks.context() != nullptr) {
    found.task->use_mesh(*ranks.context());
  }
  const auto model = train::load_on_ranks(found.model, specs, config, ranks, device);
  const auto rows = ranks.share(config.validation.local_batch_size * ranks.data_parallel_size());
  const auto& source = options.train_data ? found.data.train_once : found.data.validation;
  const auto stream = source(rows, config.validation.max_rows());
  const auto result = found.build->validate(*model, *found.task, *stream, {.ranks = &ranks, .device = device});
  if (!std::isfinite(result.loss)) {
    fail_runtime(
        "lehr eval: the loss of {} is {}: a weight or a hidden state is not finite (docs/debugging.md)",
        folder.string(),
        result.loss);
  }
  Node report = Node::make_table();
  report.set("model", Node(folder.string()));
  report.set("loss", Node(result.loss));
  if (!train::reads_whole_texts(config.training.task)) {
    const double perplexity = std::exp(result.loss);
    report.set("perplexity", std::isfinite(perplexity) ? Node(perplexity) : Node());
  }
  report.set("items", Node(result.valid));
  for (const auto& [name, value] : result.metrics) {
    report.set(name, Node(value));
  }
  return report;
}
}  // namespace

int eval(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start) {
  EvalOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<train::TrainConfig>());
  if (arguments.help) {
    return print_help(
        "lehr eval CONFIG.toml [--model DIR] [--section.key=value ...]\n\n"
        "Computes loss and perplexity of a model on the held-out data of a config. Prints one JSON object.\n\n"
        "A model that needs several devices is evaluated on the mesh of the config's [parallelism], by lehr launch,\n"
        "torchrun, srun or mpirun; one process uses one device, whatever the degrees:\n\n"
        "  lehr launch -n 4 -- eval CONFIG.toml --parallelism.tensor_parallel_degree=2\n\n",
        ConfigObject::of(options));
  }
  require(arguments.positionals.size() == 1, "lehr eval: expected one config file; see lehr eval --help");
  const std::string& given = arguments.positionals[0];
  require(
      !std::filesystem::is_directory(given),
      "lehr eval: expected a config file, which describes the data, found the folder {}; evaluate a model on the data of "
      "a config with lehr eval CONFIG.toml --model {}",
      given,
      given);
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  start({.device = config.training.device, .comm = config.comm}, [&](mesh::Transport* transport) {
    const Node report = with_places(sources, [&] { return measure(config, options, specs, transport); });
    if (transport == nullptr || transport->rank() == 0) {
      std::puts(to_json(report).c_str());
    }
  });
  return 0;
}

}  // namespace lehr::app

// lehr eval CONFIG.toml --model DIR
#include <cmath>
#include <cstdio>

#include "app/command.h"
#include "app/model_and_data.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/json.h"
#include "lehr/train/device.h"
#include "lehr/train/precision.h"
#include "lehr/train/validate.h"

namespace lehr::app {

namespace {
struct Options {
  std::optional<std::string> model;
  bool train_data = false;
  void fields(FieldVisitor& v) {
    v.optional(
        "model", model, "Folder of a model or of adapters; not given: the newest checkpoint of the config's run.");
    v.optional("train_data", train_data, "Measure on the training data (one pass) instead of the held-out data.");
  }
};

Node measure(train::TrainConfig config, const Options& options) {
  const at::Device device = train::choose_device(config.training.device);
  if (options.train_data) {
    config.data.repeat = false;
    config.data.shuffle = false;
  }
  const auto [folder, opened, tokenizer, data, task] = open_model_and_data(config, options.model);
  require(
      options.train_data || data.validation,
      "lehr eval: the config holds no data out; set data.validation_fraction or data.validation_path, or use "
      "--train-data");
  const auto model = opened.load(device, train::compute_type(config.training));
  const auto rows = train::RowShare::all(config.validation.local_batch_size);
  const auto stream = (options.train_data ? data.train_once : data.validation)(rows, config.validation.max_rows());
  const auto result = train::validate(*model, *task, *stream);
  Node report = Node::make_table();
  report.set("model", Node(folder.string()));
  report.set("loss", Node(result.loss));
  if (config.training.task != train::TaskKind::classification) {
    report.set("perplexity", Node(std::exp(result.loss)));
  }
  report.set("items", Node(result.valid));
  for (const auto& [name, value] : result.metrics) {
    report.set(name, Node(value));
  }
  return report;
}
}  // namespace

int eval(const std::vector<std::string>& args) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr eval CONFIG.toml [--model DIR] [--section.key=value ...]\n\n"
         "Loss and perplexity of a model on the held-out data of a config. Prints one JSON object.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(arguments.positionals.size() == 1, "lehr eval: expected one config file; see lehr eval --help");
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  const Node report = with_places(sources, [&] { return measure(config, options); });
  std::puts(to_json(report).c_str());
  return 0;
}

}  // namespace lehr::app

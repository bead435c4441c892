// lehr eval CONFIG.toml --model DIR
#include <cmath>
#include <cstdio>

#include "lehr/app/command.h"
#include "lehr/app/model_and_data.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/json.h"
#include "lehr/train/device.h"
#include "lehr/train/precision.h"
#include "lehr/train/train_spec.h"
#include "lehr/train/validate.h"

namespace lehr::app {

namespace {
struct Options {
  std::optional<std::string> model;
  bool train_data = false;
  void fields(FieldVisitor& v) {
    v.optional(
        "model", model, "Folder of a model or of adapters; not given: the newest checkpoint of the config's run.");
    v.optional("train_data", train_data, "Evaluate one pass over the training data instead of the held-out data.");
  }
};

Node measure(train::TrainConfig config, const Options& options, const descriptor::ModelFamilies& families) {
  const at::Device device = train::choose_device(config.training.device);
  if (options.train_data) {
    config.data.repeat = false;
    config.data.shuffle = false;
  }
  const auto [folder, opened, tokenizer, data, task] = open_model_and_data(config, options.model, families);
  require(
      options.train_data || data.validation,
      "lehr eval: the config has no held-out data; set data.validation_fraction or data.validation_path, or use "
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

int eval(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr eval CONFIG.toml [--model DIR] [--section.key=value ...]\n\n"
         "Computes loss and perplexity of a model on the held-out data of a config. Prints one JSON object.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(arguments.positionals.size() == 1, "lehr eval: expected one config file; see lehr eval --help");
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  const Node report = with_places(sources, [&] { return measure(config, options, specs.families()); });
  std::puts(to_json(report).c_str());
  return 0;
}

}  // namespace lehr::app

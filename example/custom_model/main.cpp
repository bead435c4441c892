// custom_model RECIPE.toml [--data FILE] [--section.key=value ...]: trains a parallel decoder.
//
// Exit codes: 0: the loss reached [goal]; 1: it did not, or the run failed; 2: wrong input; 128 + S: signal S
#include <fmt/core.h>

#include <exception>
#include <filesystem>

#include "config.h"
#include "family.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/stop_signals.h"
#include "lehr/config/command_line.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/train/trainer.h"

using namespace lehr;

namespace {
struct Options {
  std::string data;
  void fields(FieldVisitor& v) {
    v.optional("data", data, "Train on this text instead of the recipe's first dataset.");
  }
};

int run(const std::vector<std::string>& command_line) {
  Options options;
  const Arguments arguments = parse_arguments(command_line, ConfigObject::of(options));
  if (arguments.help) {
    fmt::print("custom_model RECIPE.toml [--section.key=value ...]\n\n{}", arguments_help(ConfigObject::of(options)));
    fmt::print("\nKeys of the recipe:\n{}", help_text<parallel_decoder::Config>());
    return 0;
  }
  require(arguments.positionals.size() == 1, "custom_model: expected one recipe; see --help");
  auto config =
      load_config<parallel_decoder::Config>({.file = arguments.positionals[0], .overrides = arguments.overrides});
  if (!options.data.empty()) {
    config.train.data.datasets.front().path = options.data;
  }

  StopSignals signals;
  Logger log("");
  train::TrainSpecs specs;
  specs.add(parallel_decoder::family());  // builders of the run can be replaced here too: see train/builders.h
  train::Trainer trainer(
      config.train, {.specs = specs, .log = log, .stop_requested = [&] { return signals.received() != 0; }});
  signals.defer();
  if (trainer.run().stopped) {
    return 128 + signals.received();
  }

  // Losses of the whole run, even if it was stopped and resumed.
  const auto loss =
      metric::read_metric(std::filesystem::path(config.train.job.dump_folder) / "metrics.jsonl", "loss").values;
  require(!loss.empty(), "{}: no step had a finite loss", config.train.job.dump_folder);
  const bool reached = loss.front() - loss.back() > config.goal.loss_fall;
  fmt::print(
      "loss {:.3f} -> {:.3f}, {} the goal\n", loss.front(), loss.back(), reached ? "which reaches" : "which misses");
  return reached ? 0 : 1;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "failed: {}\n", error.what());
    return 1;
  }
}

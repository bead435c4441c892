// The interface of the program's commands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lehr/app/ranks.h"

namespace lehr::train {
class TrainSpecs;
}  // namespace lehr::train

namespace lehr::app {

/// One command of the program. `run` gets the arguments after the command's name and the program's model families, and
/// returns the exit code; it may throw lehr::Error. A command that runs on several ranks also has `on_threads`, whose
/// ranks are threads of this process.
struct Command {
  std::string name;
  std::string summary;
  std::function<int(const std::vector<std::string>& args, const train::TrainSpecs& specs)> run;
  std::function<int(const std::vector<std::string>& args, const train::TrainSpecs& specs, int64_t ranks)> on_threads =
      {};

  bool runs_on_ranks() const { return static_cast<bool>(on_threads); }
};

/// All commands, in the order of the program's help.
const std::vector<Command>& commands();

/// Prints the --help of a command, `usage`, the help of its `options` and then `more`, and returns the exit code.
int print_help(const std::string& usage, const ConfigObject& options, const std::string& more = "");

/// The functions of the commands, one each.
int train(const std::vector<std::string>& args, const train::TrainSpecs& specs);
/// The config that `train` runs with these arguments, which are not --help. Throws as `train` does.
train::TrainConfig train_config(const std::vector<std::string>& args);
/// `train` on `ranks` ranks, which are threads of this process.
int train_on_threads(const std::vector<std::string>& args, const train::TrainSpecs& specs, int64_t ranks);
int eval(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start);
int search(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start);
int score(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start);
int generate(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start);
int merge(const std::vector<std::string>& args, const train::TrainSpecs& specs);
int plan(const std::vector<std::string>& args, const train::TrainSpecs& specs);
int verify(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start);
int convert(const std::vector<std::string>& args, const train::TrainSpecs& specs);
int prune(const std::vector<std::string>& args, const train::TrainSpecs& specs);
int inspect(const std::vector<std::string>& args, const train::TrainSpecs& specs);
int tokenize(const std::vector<std::string>& args);
int metrics(const std::vector<std::string>& args);
int launch(const std::vector<std::string>& args, const train::TrainSpecs& specs);

}  // namespace lehr::app

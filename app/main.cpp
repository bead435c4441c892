// lehr COMMAND ...: the program.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/leave.h"
#include "lehr/base/suggest.h"
#include "lehr/base/tensor_memory.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/rank_environment.h"

namespace lehr::app {

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands{
      {"train", "train a model from a TOML file; resumes by itself", train},
      {"plan", "time, memory and bubble of a run, before it is started", plan},
      {"eval", "loss and perplexity of a checkpoint on a data set", eval},
      {"score", "how much each part of a model matters, for pruning", score},
      {"generate", "text from a checkpoint", generate},
      {"verify", "compare a model with values from another implementation", verify},
      {"merge", "adapters and their base model as one model", merge},
      {"inspect", "show what is in a model folder", inspect},
      {"convert", "a model folder in another layout, type or cut into files", convert},
      {"prune", "a smaller model of what a trained one needs most", prune},
      {"tokenize", "text to token ids and back", tokenize},
      {"launch", "a command as several ranks on this machine", launch},
  };
  return kCommands;
}

}  // namespace lehr::app

namespace {
using lehr::app::commands;

std::string usage() {
  std::string text =
      "Lehr trains large language models.\n\n  lehr COMMAND [ARGUMENTS]\n  lehr COMMAND --help    explains a "
      "command\n\n";
  for (const auto& command : commands()) {
    text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  }
  return text +
         "\nStart with:\n"
         "  lehr train recipe/quickstart.toml                      a small Qwen3 on a CPU, in minutes\n"
         "  lehr generate --model outputs/quickstart/checkpoints/step-N --prompt \"ROMEO:\"\n\n"
         "Exit codes: 0 success, 1 failure at run time, 2 wrong use or wrong input, 3 a check did not hold,\n"
         "143 stopped by SIGTERM after saving.\n";
}

// Several processes would each do the whole work, and write the same files.
void require_alone(const std::string& command, const std::vector<std::string>& args) {
  const auto beside = lehr::mesh::started_beside_others(lehr::mesh::environment_variables());
  const bool asks = std::find(args.begin(), args.end(), "--help") != args.end();
  lehr::require(
      beside.description.empty() || asks,
      "lehr {}: works in one process, but {}; start it without the launcher, or, in a rank of another program, as: env "
      "-u {} lehr {} ...",
      command,
      beside.description,
      fmt::join(beside.variables, " -u "),
      command);
}

int run(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    std::fputs(usage().c_str(), args.empty() ? stderr : stdout);
    return args.empty() ? 2 : 0;
  }
  if (args[0] == "--version") {
    std::puts("lehr " LEHR_VERSION);
    return 0;
  }
  std::vector<std::string> names;
  for (const auto& command : commands()) {
    if (command.name == args[0]) {
      if (command.name != "train") {
        require_alone(command.name, args);
      }
      return command.run({args.begin() + 1, args.end()});
    }
    names.push_back(command.name);
  }
  const auto nearest = lehr::suggest(args[0], names);
  lehr::fail(
      "lehr: '{}' is no command{}; lehr --help lists them",
      args[0],
      nearest ? fmt::format(", did you mean '{}'?", *nearest) : "");
}

int code_of(const std::vector<std::string>& args) {
  try {
    return run(args);
  } catch (const lehr::Error& error) {
    lehr::mesh::report_failure(error);
    return error.exit_code();
  } catch (const std::exception& error) {
    lehr::mesh::report_failure(error);
    return 1;
  }
}
}  // namespace

int main(int argc, char** argv) {
  lehr::keep_tensor_memory();
  lehr::leave(code_of({argv + 1, argv + argc}));
}

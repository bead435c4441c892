#include "lehr/app/main.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/fast_exit.h"
#include "lehr/base/parallel.h"
#include "lehr/config/suggest.h"
#include "lehr/memory/caching_allocator.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/rank_environment.h"
#include "lehr/ops/cpu_choice.h"

namespace lehr::app {

namespace {
// A command that runs on several ranks.
using RankCommand =
    int (*)(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start);

auto of_launcher(RankCommand command) {
  return [command](const std::vector<std::string>& args, const train::TrainSpecs& specs) {
    return command(args, specs, launched_ranks());
  };
}
auto of_threads(RankCommand command) {
  return [command](const std::vector<std::string>& args, const train::TrainSpecs& specs, int64_t ranks) {
    return command(args, specs, thread_ranks(ranks));
  };
}
}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands{
      {"train", "train a model described by a TOML file; resumes automatically", train, train_on_threads},
      {"plan", "predict time, memory and bubble of a run before it starts", plan},
      {"eval", "compute loss and perplexity of a checkpoint on a dataset", of_launcher(eval), of_threads(eval)},
      {"score", "score the importance of each part of a model, for pruning", of_launcher(score), of_threads(score)},
      {"generate", "generate text with a checkpoint", of_launcher(generate), of_threads(generate)},
      {"verify", "compare a model with the outputs of another implementation", of_launcher(verify), of_threads(verify)},
      {"merge", "merge adapters into their base model", merge},
      {"inspect", "show the layers and tensors of a model folder", inspect},
      {"convert", "write a model folder in another layout, dtype or file size", convert},
      {"prune", "make a smaller model of the most important parts of a trained one", prune},
      {"search",
       "find the best smaller version of a trained model under budgets",
       of_launcher(search),
       of_threads(search)},
      {"tokenize",
       "convert text to token ids and back",
       [](const std::vector<std::string>& args, const train::TrainSpecs&) { return tokenize(args); }},
      {"metrics",
       "show the loss and other metrics of runs, even while they run",
       [](const std::vector<std::string>& args, const train::TrainSpecs&) { return metrics(args); }},
      {"launch", "run a command as several ranks on this machine", launch},
  };
  return kCommands;
}

int print_help(const std::string& usage, const ConfigObject& options, const std::string& more) {
  std::fputs((usage + arguments_help(options) + more).c_str(), stdout);
  return 0;
}

namespace {
std::string usage() {
  std::string text =
      "Lehr trains large language models.\n\n"
      "  lehr COMMAND [ARGUMENTS]\n"
      "  lehr COMMAND --help    explains a command\n\n";
  for (const auto& command : commands()) {
    text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  }
  return text +
         "\nStart with:\n"
         "  lehr train recipe/quickstart.toml                      a small Qwen3 on a CPU, in minutes\n"
         "  lehr generate --model outputs/quickstart/checkpoints/step-N --prompt \"ROMEO:\"\n\n"
         "Exit codes: 0 success, 1 failure at run time, 2 wrong usage or input, 3 a check failed,\n"
         "4 a bug in Lehr, 130, 143 or 129 stopped by Ctrl-C, SIGTERM or SIGHUP after saving.\n";
}

// Several processes would each do the whole work and write the same files.
void require_alone(const std::string& command, const std::vector<std::string>& args) {
  const auto beside = mesh::started_beside_others(mesh::environment_variables());
  const bool asks = std::find(args.begin(), args.end(), "--help") != args.end();
  require(
      beside.description.empty() || asks,
      "lehr {}: runs in one process, but {}; start it without the launcher, or, within a rank of another program, as: "
      "env -u {} lehr {} ...",
      command,
      beside.description,
      fmt::join(beside.variables, " -u "),
      command);
}

int run(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
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
      if (!command.runs_on_ranks()) {
        require_alone(command.name, args);
      }
      return command.run({args.begin() + 1, args.end()}, specs);
    }
    names.push_back(command.name);
  }
  const auto nearest = suggest(args[0], names);
  fail(
      "lehr: '{}' is not a command{}; lehr --help lists them",
      args[0],
      nearest ? fmt::format(", did you mean '{}'?", *nearest) : "");
}

int code_of(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  try {
    ops::restrict_cpu_libraries();  // before there are threads
    return run(args, specs);
  } catch (const Error& error) {
    mesh::report_failure(error);
    return error.exit_code();
  } catch (const std::exception& error) {
    mesh::report_failure(error);
    return 1;
  }
}

// Opens those of 0, 1 and 2 that are closed: the next file would get the number, and the log's lines.
void open_standard_files() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(file, F_GETFD) < 0) {
      ::open("/dev/null", O_RDWR);  // the lowest free number
    }
  }
}

// Returns `code`, or that of a failure if standard output was not written, such as to a full disk. A reader that has
// gone wants no more of it.
int with_output_written(int code) {
  std::cout.flush();
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (written || code != 0 || (::poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0)) {
    return code;
  }
  const std::string reason = errno != 0 ? fmt::format(": {}", std::strerror(errno)) : "";
  mesh::report_failure(Error(ErrorKind::runtime, "standard output: not all of it could be written" + reason));
  return 1;
}

// A checkpoint keeps each of its files open, often more than the 1024 that shells allow by default.
void raise_file_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);  // where it is refused, the limit stays
  }
}
}  // namespace

int main(int argc, char** argv, const train::TrainSpecs& specs) {
  open_standard_files();
  keep_tensor_memory();
  raise_file_limit();
  limit_threads_to_quota();
  fast_exit(with_output_written(code_of({argv + 1, argv + argc}, specs)));
}

}  // namespace lehr::app

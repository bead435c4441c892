// lehr launch -n N -- COMMAND ...: several ranks of a program on this machine.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "lehr/app/child_ranks.h"
#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/config/command_line.h"
#include "lehr/train/fewer_ranks.h"

namespace lehr::app {

namespace {
struct LaunchOptions {
  int64_t ranks = 1;
  std::string output = "main";
  bool threads = false;
  int64_t restarts = 0;
  int64_t min_ranks = 0;
  void fields(FieldVisitor& v) {
    v.required("ranks", ranks, "Number of ranks; -n N is short for it.", positive());
    v.optional(
        "output",
        output,
        "main: the output of rank 0, unchanged. all: the output of every rank, each line prefixed with its rank.",
        one_of({"main", "all"}));
    v.optional(
        "restarts",
        restarts,
        "Maximum number of restarts of all ranks, after a rank failed or was killed; lehr train then continues from "
        "its newest checkpoint.",
        at_least(0));
    v.optional(
        "min_ranks",
        min_ranks,
        "Minimum number of ranks to continue with: a rank that caused two failures is left out of later restarts. 0: "
        "always restart all ranks.",
        at_least(0));
    v.optional("threads", threads, "Run the ranks as threads of one process, for debugging; lehr's own commands only.");
  }
};

// The names of lehr's commands that run on several ranks: "train, eval".
std::string rank_commands() {
  std::string names;
  for (const Command& command : commands()) {
    if (command.runs_on_ranks()) {
      names += (names.empty() ? "" : ", ") + command.name;
    }
  }
  return names;
}

std::string launch_help() {
  LaunchOptions options;
  return "lehr launch -n N [--restarts R [--min-ranks M]] [--output main|all] [--threads] -- COMMAND ...\n\n"
         "Starts N ranks of COMMAND on this machine. COMMAND is one of lehr's " +
         rank_commands() +
         ",\n"
         "or any program that reads torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).\n\n"
         "  lehr launch -n 4 -- train run.toml --parallelism.data_parallel_shard_degree=4\n"
         "  lehr launch -n 4 --restarts 3 -- train run.toml      # restarts after a crash\n"
         "  lehr launch -n 4 --restarts 3 --min-ranks 2 -- train run.toml      # and without a rank that fails twice\n"
         "  lehr launch -n 2 -- eval run.toml --parallelism.tensor_parallel_degree=2\n"
         "  lehr launch -n 2 -- ./my_program\n\n"
         "SIGTERM, SIGHUP and Ctrl-C are forwarded to all ranks, and the launcher waits for them. When a rank fails,\n"
         "the others end within seconds, its message is shown once, and the launcher returns its exit code (128 +\n"
         "the signal that killed it). With --restarts all ranks are started again, except after wrong input (exit\n"
         "code 2), a bug (4) or a stop by a signal. With --min-ranks a rank that fails twice is left out: lehr train\n"
         "reduces the data-parallel degrees, and keeps the batch of a step and the order of data; another program is\n"
         "started on the remaining ranks. On several machines use torchrun, srun or mpirun: lehr reads\n"
         "their variables as well.\n\n"
         "SIGUSR1 makes the launcher print what each rank does, in which step, and for which collective it waits.\n\n" +
         arguments_help(ConfigObject::of(options));
}

// Returns the function that fits the program to fewer ranks; null without --min-ranks.
std::function<FewerRanks(int64_t left)> fewer_ranks(
    const LaunchOptions& options, bool is_train, const std::vector<std::string>& args) {
  if (options.min_ranks == 0) {
    return {};
  }
  require(
      options.restarts > 0,
      "lehr launch: --min-ranks is the smallest number of ranks for a restart; add --restarts N, or leave it out");
  require(
      options.min_ranks <= options.ranks,
      "lehr launch: --min-ranks: expected at most the {} ranks of -n, found {}",
      options.ranks,
      options.min_ranks);
  if (!is_train) {
    return [options](int64_t left) {
      require(left >= options.min_ranks, "{} ranks are left, fewer than --min-ranks {}", left, options.min_ranks);
      return FewerRanks{.ranks = left};
    };
  }
  const std::vector<std::string> own(args.begin() + 1, args.end());
  if (std::none_of(own.begin(), own.end(), is_help)) {
    train::require_fits_fewer_ranks(train_config(own));
  }
  return [options, own](int64_t left) {
    const auto mesh = train::fit_fewer_ranks(train_config(own), options.ranks, left, options.min_ranks);
    return FewerRanks{.ranks = mesh.ranks, .args = mesh.overrides};
  };
}

// The file of a program, found as the shell does.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    require(::access(name.c_str(), X_OK) == 0, "lehr launch: '{}' is not an executable file", name);
    return name;
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (std::filesystem::path(folder) / name).string();
    if (::access(file.c_str(), X_OK) == 0 && !std::filesystem::is_directory(file)) {
      return file;
    }
  }
  fail("lehr launch: '{}' is neither a command of lehr nor a program in PATH", name);
}
}  // namespace

int launch(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  const auto separator = std::find(args.begin(), args.end(), "--");
  std::vector<std::string> own(args.begin(), separator);
  std::replace(own.begin(), own.end(), std::string("-n"), std::string("--ranks"));
  LaunchOptions options;
  const Arguments arguments = parse_arguments(own, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(launch_help().c_str(), stdout);
    return 0;
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr launch: expected the command after '--', as in: lehr launch -n {} -- {}",
      options.ranks,
      arguments.positionals.empty() ? "train run.toml" : arguments.positionals[0]);
  require(
      separator != args.end() && separator + 1 != args.end(),
      "lehr launch: expected a command after '--', as in: lehr launch -n {} -- train run.toml",
      options.ranks);
  if (options.threads) {
    require(options.output == "main", "lehr launch: with --threads only rank 0 writes output; leave --output out");
    require(
        options.restarts == 0 && options.min_ranks == 0,
        "lehr launch: with --threads all ranks are one process, which cannot be started again; leave --restarts and "
        "--min-ranks out");
    const auto command = std::find_if(commands().begin(), commands().end(), [&](const Command& one) {
      return one.name == separator[1] && one.runs_on_ranks();
    });
    require(
        command != commands().end(),
        "lehr launch: --threads runs lehr's own {}, not '{}'; leave it out",
        rank_commands(),
        separator[1]);
    return command->on_threads({separator + 2, args.end()}, specs, options.ranks);
  }
  ChildRanksOptions children{
      .ranks = options.ranks, .all_output = options.output == "all", .restarts = options.restarts};
  const std::string& name = separator[1];
  const auto is_command = [&](const Command& command) { return command.name == name; };
  const auto command = std::find_if(commands().begin(), commands().end(), is_command);
  const bool is_train = name == "train";
  if (command != commands().end()) {
    require(
        command->runs_on_ranks(),
        "lehr launch: '{}' runs on one rank; of lehr's commands, {} run on several",
        name,
        rank_commands());
    children.program = std::filesystem::read_symlink("/proc/self/exe").string();
    children.args.assign(separator + 1, args.end());
  } else {
    children.program = find_program(name);
    children.args.assign(separator + 2, args.end());
  }
  children.fewer_ranks = fewer_ranks(options, is_train, children.args);
  return run_child_ranks(children);
}

}  // namespace lehr::app

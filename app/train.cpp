// lehr train CONFIG.toml [--section.key=value ...]
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>

#include "app/command.h"
#include "app/models.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/stop_signals.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/plan/one_device.h"
#include "lehr/train/device.h"
#include "lehr/train/trainer.h"

namespace lehr::app {

namespace {
struct Options {
  bool quiet = false;
  bool print_config = false;
  bool profile = false;
  void fields(FieldVisitor& v) {
    v.optional("quiet", quiet, "Show warnings and errors only.");
    v.optional("print_config", print_config, "Print the resolved config and stop.");
    v.optional(
        "profile",
        profile,
        "Show where the time of some steps goes: a table by kind of operator. As profiling.operator_table, "
        "for this start alone.");
  }
};

std::string help() {
  Options options;
  return "lehr train CONFIG.toml [--section.key=value ...]\n\n"
         "Trains what CONFIG.toml describes. Run again with the same job.dump_folder to resume from the newest "
         "complete\n"
         "checkpoint. Any key of the file can be set from the command line, which wins over the file. SIGTERM and "
         "Ctrl-C\n"
         "save a checkpoint and stop. On several ranks: lehr launch -n N -- train CONFIG.toml, or torchrun, srun, "
         "mpirun;\n"
         "[parallelism] says what they share.\n\n" +
         arguments_help(ConfigObject::of(options)) + "\nKeys of the config:\n" + help_text<train::TrainConfig>();
}

int run(const train::TrainConfig& config, const Options& options, mesh::Transport& transport, StopSignals& signals) {
  Logger log("", options.quiet || transport.rank() != 0);
  const auto specs = models();
  train::Trainer trainer(
      config,
      {.specs = specs,
       .log = log,
       .stop_requested = [&] { return signals.received() != 0; },
       .transport = &transport,
       .predict_peak = plan::peak_on_one_device,
       .profile = options.profile});
  signals.defer();
  const train::TrainResult result = trainer.run();
  if (!result.stopped) {
    return 0;
  }
  log.info(
      "stopped after step {}; {}",
      result.step,
      config.checkpoint.enable ? "the same command goes on from there"
                               : "nothing was saved, as checkpoint.enable is false");
  // A signal may have reached other ranks only.
  return 128 + (signals.received() != 0 ? signals.received() : SIGTERM);
}

constexpr const char* kOperatorTable = "profiling.operator_table";

// --profile is that key for one start, so that the run's config.toml does not ask for it again.
void check_profile(const Arguments& arguments, const train::TrainConfig& config) {
  for (const auto& [key, value] : arguments.overrides) {
    require(
        key != kOperatorTable || config.profiling.operator_table,
        "lehr train --profile: --{}={} says the opposite; leave one of them out",
        key,
        value);
  }
  auto overrides = arguments.overrides;
  overrides.emplace_back(kOperatorTable, "true");
  const std::string& file = arguments.positionals[0];
  from_node<train::TrainConfig>(merge_sources({.file = file, .overrides = overrides}), file);  // what it finds wrong
}

// Parses, and trains on the ranks that `on_ranks` makes: it calls `body` on each with the rank's transport.
using RankBody = std::function<void(mesh::Transport& transport)>;
int train_on(
    const std::vector<std::string>& args,
    const std::function<void(const train::TrainConfig& config, StopSignals& signals, const RankBody& body)>& on_ranks) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  require(
      arguments.positionals.size() == 1,
      "lehr train: expected one config file, found {}; lehr train --help explains",
      arguments.positionals.size());
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  if (options.profile) {
    check_profile(arguments, config);
  }
  if (options.print_config) {
    std::fputs(to_toml(config).c_str(), stdout);
    return 0;
  }
  StopSignals signals;
  // A file that may not grow is an error of its write, not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  std::atomic<int> code = 0;  // the same on all ranks
  on_ranks(config, signals, [&](mesh::Transport& transport) {
    code = with_places(sources, [&] { return run(config, options, transport, signals); });
  });
  return code;
}
}  // namespace

int train(const std::vector<std::string>& args) {
  return train_on(args, [](const train::TrainConfig& config, StopSignals& signals, const RankBody& body) {
    signals.set_last_act([](int signal, bool second) { mesh::report_stop(nullptr, signal, second); });
    const auto ranks = mesh::read_rank_environment(mesh::environment_variables());
    mesh::ConnectOptions options{
        .init_timeout = std::chrono::seconds(config.comm.init_timeout_seconds),
        .timeout = std::chrono::seconds(config.comm.train_timeout_seconds)};
    if (ranks.world_size > 1) {
      options.device = train::choose_rank_device(config.training.device, ranks.local_rank);
    }
    const auto transport = mesh::connect_ranks(ranks, options);
    const LastAct telling(
        signals, [&](int signal, bool second) { mesh::report_stop(transport.get(), signal, second); });
    mesh::run_connected(*transport, [&] { body(*transport); });
  });
}

int train_on_threads(const std::vector<std::string>& args, int64_t ranks) {
  return train_on(args, [&](const train::TrainConfig& config, StopSignals&, const RankBody& body) {
    mesh::run_ranks(ranks, body, std::chrono::seconds(config.comm.train_timeout_seconds));
  });
}

}  // namespace lehr::app

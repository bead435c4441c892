// lehr train CONFIG.toml [--section.key=value ...]
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>

#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/stop_signals.h"
#include "lehr/config/command_line.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/plan/forecast.h"
#include "lehr/train/device.h"
#include "lehr/train/trainer.h"

namespace lehr::app {

namespace {
struct TrainOptions {
  bool quiet = false;
  bool print_config = false;
  bool profile = false;
  void fields(FieldVisitor& v) {
    v.optional("quiet", quiet, "Show warnings and errors only.");
    v.optional("print_config", print_config, "Print the resolved config and stop.");
    v.optional(
        "profile",
        profile,
        "Measure a few steps and print a table of their time by kind of operator. Like profiling.operator_table, but "
        "for this invocation only.");
  }
};

std::string train_help() {
  TrainOptions options;
  return "lehr train CONFIG.toml [--section.key=value ...]\n\n"
         "Trains the model that CONFIG.toml describes. Run it again with the same job.dump_folder to resume from the\n"
         "newest complete checkpoint. The command line can set any key and overrides the file. SIGTERM, Ctrl-C and a\n"
         "closed terminal (SIGHUP; not with nohup) save a checkpoint and stop. For several ranks use\n"
         "lehr launch -n N -- train CONFIG.toml, or torchrun, srun or mpirun, and set the degrees in [parallelism].\n\n" +
         arguments_help(ConfigObject::of(options)) + "\nKeys of the config:\n" + help_text<train::TrainConfig>();
}

int run(
    const train::TrainConfig& config,
    const TrainOptions& options,
    const train::TrainSpecs& specs,
    mesh::Transport& transport,
    const std::string& why_cpu,
    StopSignals& signals) {
  Logger log("", options.quiet || transport.rank() != 0);
  if (!why_cpu.empty()) {
    log.info("training.device: the ranks compute on CPUs, since some have no GPU of their own: {}", why_cpu);
  }
  train::Trainer trainer(
      config,
      {.specs = specs,
       .log = log,
       .stop_requested = [&] { return signals.received() != 0; },
       .transport = &transport,
       .forecast = plan::forecast_step,
       .profile = options.profile});
  signals.defer();
  const train::TrainResult result = trainer.run();
  if (!result.stopped) {
    return 0;
  }
  log.info(
      "stopped after step {}; {}",
      result.step,
      config.checkpoint.enable ? "the same command resumes from there"
                               : "nothing was saved, because checkpoint.enable is false");
  // A signal may have reached other ranks only.
  return 128 + (signals.received() != 0 ? signals.received() : SIGTERM);
}

constexpr const char* kOperatorTable = "profiling.operator_table";

// --profile sets that key for one start only; the run's config.toml does not have it.
void check_profile(const Arguments& arguments, const train::TrainConfig& config) {
  for (const auto& [key, value] : arguments.overrides) {
    require(
        key != kOperatorTable || config.profiling.operator_table,
        "lehr train --profile: contradicts --{}={}; leave one of them out",
        key,
        value);
  }
  auto overrides = arguments.overrides;
  overrides.emplace_back(kOperatorTable, "true");
  const std::string& file = arguments.positionals[0];
  from_node<train::TrainConfig>(merge_sources({.file = file, .overrides = overrides}), file);  // reports errors
}

Node sources_of(const Arguments& arguments) {
  require(
      arguments.positionals.size() == 1,
      "lehr train: expected one config file, found {}; lehr train --help explains",
      arguments.positionals.size());
  return merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
}

// Parses the arguments and trains on the ranks that `on_ranks` creates: it calls `body` on each with its transport, and
// with the reason why ranks that might have GPUs compute on CPUs.
using RankBody = std::function<void(mesh::Transport& transport, const std::string& why_cpu)>;
int train_on(
    const std::vector<std::string>& args,
    const train::TrainSpecs& specs,
    const std::function<void(const train::TrainConfig& config, StopSignals& signals, const RankBody& body)>& on_ranks) {
  TrainOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<train::TrainConfig>());
  if (arguments.help) {
    std::fputs(train_help().c_str(), stdout);
    return 0;
  }
  const Node sources = sources_of(arguments);
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  if (options.profile) {
    check_profile(arguments, config);
  }
  if (options.print_config) {
    std::fputs(to_toml(config).c_str(), stdout);
    return 0;
  }
  train::set_library_variables(config.training.device, config.debug.deterministic);  // before there are threads
  StopSignals signals;
  // A file that exceeds its size limit is an error of the write, and a reader of the log that has gone (Ctrl-C ends
  // `tee`, too) is none: neither ends the program before it has saved.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::atomic<int> code = 0;  // the same on all ranks
  on_ranks(config, signals, [&](mesh::Transport& transport, const std::string& why_cpu) {
    code = with_places(sources, [&] { return run(config, options, specs, transport, why_cpu, signals); });
  });
  return code;
}
}  // namespace

train::TrainConfig train_config(const std::vector<std::string>& args) {
  TrainOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<train::TrainConfig>());
  const Node sources = sources_of(arguments);
  return from_node<train::TrainConfig>(sources, arguments.positionals[0]);
}

int train(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  return train_on(args, specs, [](const train::TrainConfig& config, StopSignals& signals, const RankBody& body) {
    signals.set_exit_callback([](int signal, bool second) { mesh::report_stop(nullptr, signal, second); });
    const auto ranks = mesh::read_rank_environment(mesh::environment_variables());
    mesh::ConnectOptions options;
    if (ranks.world_size > 1) {
      options = train::choose_rank_device(config.training.device, ranks);
    }
    options.init_timeout = std::chrono::seconds(config.comm.init_timeout_seconds);
    options.timeout = std::chrono::seconds(config.comm.train_timeout_seconds);
    std::string why_cpu;
    options.on_cpu_fallback = [&](const std::string& reason) { why_cpu = reason; };
    const auto transport = mesh::connect_ranks(ranks, options);
    const ExitCallback telling(
        signals, [&](int signal, bool second) { mesh::report_stop(transport.get(), signal, second); });
    mesh::run_connected(*transport, [&] { body(*transport, why_cpu); });
  });
}

int train_on_threads(const std::vector<std::string>& args, const train::TrainSpecs& specs, int64_t ranks) {
  return train_on(args, specs, [&](const train::TrainConfig& config, StopSignals&, const RankBody& body) {
    mesh::run_ranks(
        ranks,
        [&](mesh::Transport& transport) { body(transport, ""); },
        std::chrono::seconds(config.comm.train_timeout_seconds));
  });
}

}  // namespace lehr::app

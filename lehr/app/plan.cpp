// lehr plan CONFIG.toml [--machine NAME] [--devices N] [--output DIR] [--section.key=value ...]
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/progress.h"
#include "lehr/config/command_line.h"
#include "lehr/config/config.h"
#include "lehr/emulate/emulate.h"
#include "lehr/plan/calibrate_run.h"
#include "lehr/plan/report.h"
#include "lehr/plan/resolved_run.h"
#include "lehr/plan/search.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
struct PlanOptions {
  std::string machine = "h100";
  int64_t devices = 0;
  std::string peer;
  std::string output;
  bool calibrate = false;
  bool schedules = true;
  bool search = false;
  bool emulate = false;
  double memory_gb = 0;
  std::vector<int64_t> microbatch_sizes;
  void fields(FieldVisitor& v) {
    v.optional("machine", machine, "h100, h200, b200, a100, cpu, or a TOML file with the keys below.");
    v.optional(
        "devices",
        devices,
        "Number of devices, which --search needs; 0: the product of the degrees. data_parallel_shard_degree = -1 takes "
        "the remaining ones.",
        at_least(0));
    v.optional(
        "peer",
        peer,
        "TOML file with techniques of another system that Lehr lacks, for plans of that system's runs (docs/plan.md).");
    v.optional(
        "output",
        output,
        "Folder for report.txt, plan.json, and memory and timeline as .svg and .html; with --emulate also for "
        "emulation.txt, a Chrome trace, and timelines.");
    v.optional(
        "calibrate",
        calibrate,
        "Measure this computer's CPU for a few seconds, print the result as a machine file (TOML), and stop. With a "
        "config: measure it with the matmuls, attention and other operators of that run.");
    v.optional(
        "search",
        search,
        "Find the best meshes of --devices: all degrees, schedules, activation checkpointing modes, reshard policies.");
    v.optional(
        "emulate",
        emulate,
        "Also run the program of a step on all ranks, on meta tensors and in virtual time, for up to 256 devices, and "
        "compare (docs/emulate.md).");
    v.optional("memory_gb", memory_gb, "Memory of a device in GB of 1e9 bytes; 0: that of the machine.", at_least(0));
    v.optional(
        "microbatch_sizes",
        microbatch_sizes,
        "With --search: sequences per micro-batch to try, such as [1, 2, 4]; unset: those of the config.",
        positive());
    v.optional(
        "schedules", schedules, "Also predict the other pipeline schedules (--no-schedules: only the configured one).");
  }
};

std::string plan_help() {
  PlanOptions options;
  return "lehr plan CONFIG.toml [OPTIONS] [--section.key=value ...] [--machine.key=value ...]\n\n"
         "Predicts step time, tokens per second, MFU, the pipeline's bubble, the memory of each rank by kind, the\n"
         "communication over each axis and the part of it that does not overlap, the bottleneck, and the best\n"
         "schedule. CONFIG.toml is that of lehr train; no device, data or tokenizer is needed. The model is built and\n"
         "laid out as in a run, and one micro-batch of each kind of stage runs on meta tensors. Times follow from the\n"
         "machine below; docs/plan.md describes their accuracy.\n\n"
         "  lehr plan recipe/plan_llama3_405b.toml --machine h100 --output outputs/plan\n"
         "  lehr plan my_run.toml --machine a100 --devices 64 --parallelism.tensor_parallel_degree=4\n"
         "  lehr plan my_run.toml --machine h100 --machine.network_gb_per_second=12.5\n"
         "  lehr plan my_run.toml --machine h100 --search --devices 256 --microbatch-sizes '[1, 2, 4]'\n"
         "  lehr plan my_run.toml --machine h100 --devices 32 --emulate --output outputs/emulated\n"
         "  lehr plan my_run.toml --calibrate > laptop.toml; lehr plan my_run.toml --machine laptop.toml\n\n"
         "Exit codes: 0 the run fits; 2 wrong usage or config, with the message of lehr train; 3 the run does not\n"
         "fit, or no mesh of a search does.\n\n" +
         arguments_help(ConfigObject::of(options)) + "\nKeys of a machine:\n" + help_text<plan::Machine>();
}

// Removes and returns the overrides whose names begin with `prefix`; the other dotted names belong to the run.
Overrides take(Overrides& overrides, const std::string& prefix) {
  Overrides taken;
  Overrides left;
  for (auto& [key, value] : overrides) {
    if (key.starts_with(prefix)) {
      taken.emplace_back(key.substr(prefix.size()), value);
    } else {
      left.emplace_back(key, value);
    }
  }
  overrides = std::move(left);
  return taken;
}

plan::PeerDesign peer_design(const std::string& file, const Overrides& overrides) {
  ConfigSources sources{.file = {}, .overrides = overrides, .option = "peer"};
  if (!file.empty()) {
    sources.file = file;
  }
  return load_config<plan::PeerDesign>(sources);
}

plan::Machine this_cpu(const Overrides& overrides) {
  plan::Machine cpu = plan::load_machine("cpu", overrides);
  cpu.name = "this CPU";
  return cpu;
}

void print_machine(plan::Machine machine) {
  std::fputs(to_toml(machine).c_str(), stdout);
}

// --calibrate makes no plan, so nothing else that concerns one has an effect.
void check_calibrate(const Arguments& arguments, bool has_peer) {
  for (const std::string& option : arguments.options) {
    require(
        option == "--calibrate",
        "lehr plan --calibrate: {} has no effect, because a calibration prints a machine and makes no plan. Run: lehr "
        "plan CONFIG.toml --calibrate > machine.toml; lehr plan CONFIG.toml --machine machine.toml {} ...",
        option,
        option);
  }
  require(
      !has_peer, "lehr plan --calibrate: --peer.* keys have no effect, because they belong to a plan; leave them out");
  require(
      arguments.overrides.empty() || !arguments.positionals.empty(),
      "lehr plan --calibrate: --{} belongs to the config of a run; name the config as well: lehr plan CONFIG.toml "
      "--calibrate --{}=...",
      arguments.overrides.empty() ? "" : arguments.overrides.front().first,
      arguments.overrides.empty() ? "" : arguments.overrides.front().first);
}

// Before the plan is made, which may take minutes.
void make_output(const std::string& folder) {
  if (folder.empty()) {
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(
      !error && ::access(folder.c_str(), W_OK) == 0,
      "lehr plan --output: {} is not a writable folder: {}",
      folder,
      error ? error.message() : std::strerror(errno));
}

// Shows progress on the status line; the time left is that of the present part.
plan::PlanProgress progress_on(Logger& log) {
  return [&log, part = std::string(), clock = ProgressClock()](
             const std::string& what, int64_t done, int64_t all) mutable {
    if (part != what) {
      part = what;
      clock = ProgressClock();
    }
    log.live(clock.text("plan, " + what, done, all));
  };
}

int search(
    const Node& sources,
    const train::TrainConfig& config,
    const train::TrainSpecs& specs,
    const plan::Machine& machine,
    const PlanOptions& options) {
  require(options.devices > 0, "lehr plan --search: expected the number of devices, --devices N");
  Logger log;
  const plan::SearchResult result = with_places(sources, [&] {
    return plan::search_plans(
        config,
        specs.at(config.model),
        machine,
        {.devices = options.devices, .microbatch_rows = options.microbatch_sizes, .progress = progress_on(log)});
  });
  log.end_live();
  std::fputs(plan::search_text(result, machine).c_str(), stdout);
  if (result.best.empty()) {
    return 3;
  }
  if (!options.output.empty()) {
    plan::write_plan(result.best.front().plan, options.output);
  }
  return 0;
}

int plan_one(
    const Node& sources,
    const train::TrainConfig& config,
    const train::TrainSpecs& specs,
    const plan::Machine& machine,
    const plan::PeerDesign& peer,
    const PlanOptions& options) {
  Logger log;
  const plan::Plan made = with_places(sources, [&] {
    if (options.emulate) {  // before the plan is printed and written
      emulate::check_emulation(plan::resolve(config, specs.at(config.model), options.devices), machine, peer);
    }
    make_output(options.output);
    return plan::make_plan(
        config,
        specs.at(config.model),
        machine,
        {.devices = options.devices,
         .compare_schedules = options.schedules,
         .peer = peer,
         .progress = progress_on(log)});
  });
  log.end_live();
  std::fputs(plan::report_text(made).c_str(), stdout);
  if (!options.output.empty()) {
    plan::write_plan(made, options.output);
  }
  if (options.emulate) {
    log.live(fmt::format("plan, emulation of {} ranks", made.run.mesh.world_size()));
    const auto emulation = with_places(sources, [&] { return emulate::emulate(made, specs.at(config.model)); });
    log.end_live();
    std::fputs(emulate::report_text(emulation, made).c_str(), stdout);
    if (!options.output.empty()) {
      emulate::write_emulation(emulation, made, options.output);
    }
  }
  return made.fits() ? 0 : 3;
}
}  // namespace

int plan(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  PlanOptions options;
  Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<train::TrainConfig>());
  if (arguments.help) {
    std::fputs(plan_help().c_str(), stdout);
    return 0;
  }
  const auto of_machine = take(arguments.overrides, "machine.");
  const auto of_peer = take(arguments.overrides, "peer.");
  if (options.calibrate) {
    check_calibrate(arguments, !of_peer.empty());
  }
  if (options.calibrate && arguments.positionals.empty()) {
    print_machine(plan::calibrate_cpu(this_cpu(of_machine)));
    return 0;
  }
  require(
      arguments.positionals.size() == 1,
      "lehr plan: expected one config file, found {}; lehr plan --help explains",
      arguments.positionals.size());
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  if (options.calibrate) {
    print_machine(with_places(sources, [&] {
      return plan::calibrate_cpu_for(plan::calibrate_cpu(this_cpu(of_machine)), config, specs.at(config.model));
    }));
    return 0;
  }
  plan::Machine machine = plan::load_machine(options.machine, of_machine);
  if (options.memory_gb > 0) {
    require(
        options.memory_gb > machine.reserved_gb,
        "lehr plan --memory-gb: expected more than the {} GB of machine.reserved_gb, found {}",
        machine.reserved_gb,
        options.memory_gb);
    machine.memory_gb = options.memory_gb;
  }
  require(
      options.search || options.microbatch_sizes.empty(),
      "lehr plan --microbatch-sizes: needs --search; for one plan set training.local_batch_size");
  require(
      !options.emulate || !options.search, "lehr plan --emulate: emulates one plan; leave --search out, or --emulate");
  const plan::PeerDesign peer = peer_design(options.peer, of_peer);
  if (options.search) {
    require(
        options.peer.empty() && of_peer.empty(),
        "lehr plan --peer: a search plans runs of Lehr; leave out --search, or --peer");
    make_output(options.output);
    return search(sources, config, specs, machine, options);
  }
  return plan_one(sources, config, specs, machine, peer, options);
}

}  // namespace lehr::app

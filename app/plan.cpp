// lehr plan CONFIG.toml [--machine NAME] [--devices N] [--output DIR] [--section.key=value ...]
#include <cstdio>

#include "app/command.h"
#include "app/models.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/plan/report.h"
#include "lehr/plan/search.h"

namespace lehr::app {

namespace {
struct Options {
  std::string machine = "h100";
  int64_t devices = 0;
  std::string output;
  bool calibrate = false;
  bool schedules = true;
  bool search = false;
  double memory_gb = 0;
  std::vector<int64_t> microbatch_sizes;
  void fields(FieldVisitor& v) {
    v.optional("machine", machine, "h100, h200, a100, cpu, or a TOML file with the keys below.");
    v.optional(
        "devices",
        devices,
        "Devices of the run; 0: the product of the degrees. With data_parallel_shard_degree = -1 that takes the rest.",
        at_least(0));
    v.optional("output", output, "Folder for report.txt, plan.json, memory.svg, timeline.svg and timeline.html.");
    v.optional("calibrate", calibrate, "Measure this computer's CPU for two seconds, print it as a machine, and stop.");
    v.optional(
        "search",
        search,
        "Find the best meshes of --devices: all degrees, schedules, checkpointing modes and reshard policies.");
    v.optional(
        "memory_gb",
        memory_gb,
        "Memory of a device in place of the machine's, 1e9 bytes; 0: the machine's.",
        at_least(0));
    v.optional(
        "microbatch_sizes",
        microbatch_sizes,
        "Under --search: rows of a microbatch to try, as [1, 2, 4]; empty: those of the config.",
        positive());
    v.optional(
        "schedules", schedules, "Time the other pipeline schedules too (--no-schedules: only the configured one).");
  }
};

std::string help() {
  Options options;
  return "lehr plan CONFIG.toml [OPTIONS] [--section.key=value ...] [--machine.key=value ...]\n\n"
         "Tells before a run what it would take: step time, tokens a second, MFU, the pipeline's bubble, the memory of "
         "each\n"
         "rank by kind, what is sent over which axis and what of it is waited for, what is the bottleneck, and which\n"
         "schedule would be best. CONFIG.toml is that of lehr train; no device, data or tokenizer is needed. The model "
         "is\n"
         "built and laid out as in a run, and one microbatch of each kind of stage runs on tensors without memory; "
         "times\n"
         "follow from the machine below (docs/plan.md says how far to trust them).\n\n"
         "  lehr plan recipe/plan_llama3_405b.toml --machine h100 --output outputs/plan\n"
         "  lehr plan my_run.toml --machine a100 --devices 64 --parallelism.tensor_parallel_degree=4\n"
         "  lehr plan my_run.toml --machine h100 --machine.network_gb_per_second=12.5\n"
         "  lehr plan my_run.toml --machine h100 --search --devices 256 --microbatch-sizes '[1, 2, 4]'\n"
         "  lehr plan --calibrate > laptop.toml; lehr plan my_run.toml --machine laptop.toml\n\n"
         "Exit codes: 0 it fits; 2 wrong use or wrong config, as lehr train would say; 3 it does not fit, or nothing "
         "that a search tried does.\n\n" +
         arguments_help(ConfigObject::of(options)) + "\nKeys of a machine:\n" + help_text<plan::Machine>();
}

// --machine.key=value is about the machine, the other dotted names are about the run.
std::vector<std::pair<std::string, std::string>> take_machine(
    std::vector<std::pair<std::string, std::string>>& overrides) {
  const std::string prefix = "machine.";
  std::vector<std::pair<std::string, std::string>> taken;
  std::vector<std::pair<std::string, std::string>> left;
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

int search(
    const Node& sources, const train::TrainConfig& config, const plan::Machine& machine, const Options& options) {
  require(options.devices > 0, "lehr plan --search: say for how many devices, with --devices N");
  const auto specs = models();
  const plan::SearchResult result = with_places(sources, [&] {
    return plan::search_plans(
        config,
        specs.at(config.model),
        machine,
        {.devices = options.devices, .microbatch_rows = options.microbatch_sizes});
  });
  std::fputs(plan::search_text(result, machine).c_str(), stdout);
  if (result.best.empty()) {
    return 3;
  }
  if (!options.output.empty()) {
    plan::write_plan(result.best.front().plan, options.output);
  }
  return 0;
}
}  // namespace

int plan(const std::vector<std::string>& args) {
  Options options;
  Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  const auto of_machine = take_machine(arguments.overrides);
  if (options.calibrate) {
    require(arguments.positionals.empty(), "lehr plan --calibrate: measures the machine only; leave the config out");
    plan::Machine cpu = plan::load_machine("cpu", of_machine);
    cpu.name = "this CPU";
    std::fputs(to_toml(plan::calibrate_cpu(cpu)).c_str(), stdout);
    return 0;
  }
  require(
      arguments.positionals.size() == 1,
      "lehr plan: expected one config file, found {}; lehr plan --help explains",
      arguments.positionals.size());
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  const auto specs = models();
  plan::Machine machine = plan::load_machine(options.machine, of_machine);
  if (options.memory_gb > 0) {
    require(
        options.memory_gb > machine.reserved_gb,
        "lehr plan --memory-gb: expected more than the {} GB that machine.reserved_gb takes, found {}",
        machine.reserved_gb,
        options.memory_gb);
    machine.memory_gb = options.memory_gb;
  }
  require(
      options.search || options.microbatch_sizes.empty(),
      "lehr plan --microbatch-sizes: belongs to --search; for one plan set training.local_batch_size");
  if (options.search) {
    return search(sources, config, machine, options);
  }
  const plan::Plan made = with_places(sources, [&] {
    return plan::make_plan(
        config, specs.at(config.model), machine, {.devices = options.devices, .compare_schedules = options.schedules});
  });
  std::fputs(plan::report_text(made).c_str(), stdout);
  if (!options.output.empty()) {
    plan::write_plan(made, options.output);
  }
  return made.fits() ? 0 : 3;
}

}  // namespace lehr::app

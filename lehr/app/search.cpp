// lehr search SEARCH.toml
#include "lehr/search/search.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "lehr/app/command.h"
#include "lehr/app/model_and_data.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/config/command_line.h"
#include "lehr/mesh/watchdog.h"
#include "lehr/plan/forecast.h"
#include "lehr/search/work.h"
#include "lehr/train/device.h"
#include "lehr/train/precision.h"
#include "lehr/train/train_spec.h"
#include "lehr/train/trainer.h"

namespace lehr::app {

namespace {
constexpr int64_t kLongestWait = 30 * 24 * 3600;  // seconds

struct SearchOptions {
  std::string stage = "report";
  bool dry_run = false;
  void fields(FieldVisitor& v) {
    v.optional("stage", stage, "Last stage to run.", one_of(search::stage_names()));
    v.optional("dry_run", dry_run, "Print the work of each stage without doing it.");
  }
};

search::Stage stage_of(const std::string& name) {
  const auto names = search::stage_names();
  return static_cast<search::Stage>(std::find(names.begin(), names.end(), name) - names.begin());
}

// The run that trains the child: the config's data, batches and distillation losses, from the child's weights, against
// the teacher. What belongs to the teacher's own training (its schedule, checkpoints and mesh) is left out.
train::TrainConfig distillation_run(
    train::TrainConfig config,
    const search::SearchConfig& wanted,
    const std::filesystem::path& teacher,
    const std::filesystem::path& child,
    const std::filesystem::path& output) {
  config.checkpoint = {};
  config.lr_scheduler = {};
  config.parallelism = {};
  config.peft = {};
  config.job.dump_folder = output.string();
  config.model = {};
  config.model.hf_assets_path = child.string();
  config.checkpoint.initial_load_path = child.string();
  config.checkpoint.interval = std::max<int64_t>(wanted.distillation.steps / 4, 1);
  config.checkpoint.keep_latest_k = 2;
  config.distillation.teacher = teacher.string();
  config.training.steps = wanted.distillation.steps;
  config.optimizer.lr = wanted.distillation.lr;
  config.lr_scheduler.warmup_steps = wanted.distillation.steps / 10;
  config.lr_scheduler.decay_type = optim::DecayType::cosine;
  config.data.repeat = true;
  // The child's layers may have different numbers of experts, which router losses do not support.
  config.training.router_aux_loss_coef = 0;
  config.training.router_z_loss_coef = 0;
  config.training.mtp_loss_coef = 0;  // children have no modules for multi-token prediction
  return config;
}

// What a stage that a signal stops has kept, apart from the stages before it.
std::string kept_in(search::Stage stage, const search::SearchConfig& wanted) {
  switch (stage) {
    case search::Stage::library:
      return wanted.local_distillation.save_steps == 0
                 ? ", which begins again (local_distillation.save_steps is 0)"
                 : fmt::format(
                       ", which continues with the variants that were saved after every {} steps",
                       wanted.local_distillation.save_steps);
    case search::Stage::score:
    case search::Stage::solve:
      return ", which keeps the measurements that it has made";
    case search::Stage::distil:
      return ", which continues from its checkpoint";
    default:
      return ", which begins again; the stages before it are kept";
  }
}

// Returns true if it was stopped in the stage distil.
bool run_search(
    const search::SearchConfig& wanted,
    train::TrainConfig config,
    const SearchOptions& options,
    const train::TrainSpecs& specs,
    const std::string& command,
    mesh::Transport* transport,
    StopNotice& notice) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the log that has gone does not end the search
  require(
      config.training.task == train::TaskKind::causal_lm,
      "search: training.task of {}: a search needs a config of task causal_lm",
      wanted.search.config);
  // Ranks share variants and measurements, each with a whole model: not the mesh that the teacher was trained on.
  const train::Ranks ranks = ranks_of({.data_parallel_shard_degree = -1}, transport);
  ranks.require_same("config", to_toml(wanted) + to_toml(config));
  const at::Device device = train::choose_device(config.training.device, transport);
  const train::TrainConfig of_run = config;
  // In a call from Python the config may be a temporary file, so the message names no command.
  const std::string resume = std::getenv("LEHR_CALLED_FROM_PYTHON") != nullptr ? "the same call resumes it"
                             : ranks.world_size() == 1                         ? "resume it with: " + command
                                                                               : "the same command resumes it";
  config.data.repeat = false;
  Logger log("", !ranks.is_main());
  const std::filesystem::path teacher = folder_of_model(config, wanted.search.teacher, ranks);
  ModelAndData opened;
  ranks.main_first([&] { opened = open_model_and_data(config, teacher, specs, log, ranks.is_main()); });
  require(
      !opened.model.has_adapters(),
      "{}: holds adapters; merge them into their base first: lehr merge --adapter {}",
      teacher.string(),
      teacher.string());
  config.data.repeat = true;  // local distillation may take more steps than one pass over the data
  opened.data.train =
      opened.build->data(config, *opened.tokenizer, train::ModelIds::of(*opened.model.args), [](const std::string&) {})
          .train;
  // Refused now, and not after hours of other stages.
  const train::TrainConfig run = distillation_run(of_run, wanted, teacher, teacher, "");
  if (wanted.distillation.steps > 0) {
    from_node<train::TrainConfig>(to_node(run), wanted.search.config);
  }
  search::Search search(
      wanted,
      {.teacher = teacher,
       .families = specs.families(),
       .log = log,
       .device = device,
       .dtype = train::parameter_type(config.training),
       .seq_len = config.training.seq_len,
       .rows_per_step = config.training.rows_per_step(),
       .rows_per_batch = config.validation.local_batch_size,
       .task = *opened.task,
       .data = opened.data,
       .ranks = ranks,
       .distillation = to_toml(run),
       .distil = [&](const std::filesystem::path& child,
                     const std::filesystem::path& output) -> std::optional<std::filesystem::path> {
         const train::TrainConfig to_child = distillation_run(of_run, wanted, teacher, child, output);
         notice.defer();  // the trainer saves before it stops
         train::Trainer trainer(
             to_child,
             {.specs = specs,
              .log = log,
              .stop_requested = [&] { return notice.received() != 0; },
              .forecast = plan::forecast_step});
         const bool stopped = trainer.run().stopped;
         notice.defer(false);
         // A signal after its last step counts, too. Only the main rank is here.
         return stopped || notice.received() != 0 ? std::nullopt : std::optional(newest_checkpoint(to_child));
       },
       .enters =
           [&](search::Stage stage) {
             notice.set(fmt::format("in the stage {}{}; {}", search::name_of(stage), kept_in(stage, wanted), resume));
             if (stage == search::Stage::distil && !ranks.is_main()) {
               notice.defer();  // the main rank saves before it stops, and needs the others to say so
             }
           }});
  notice.set("before the first stage; " + resume);
  if (options.dry_run) {
    search.check_budgets();
    if (ranks.is_main()) {
      std::fputs(search::describe_work(search).c_str(), stdout);
    }
    return false;
  }
  return search.run(stage_of(options.stage)).stopped;
}
}  // namespace

int search(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start) {
  SearchOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<search::SearchConfig>());
  if (arguments.help) {
    return print_help(
        "lehr search SEARCH.toml [--stage STAGE] [--dry-run] [--section.key=value ...]\n\n"
        "Finds the best smaller version of a trained model under budgets. Each layer may lose different parts: KV\n"
        "heads, channels, experts or whole sub-blocks. Every smaller sub-block is trained to reproduce the teacher's\n"
        "and measured in its place; then the best combination within the budgets is built and distilled. Run the\n"
        "same command again to resume. docs/search.md explains the stages and the report.\n\n"
        "  lehr search recipe/search_quickstart.toml            # all stages\n"
        "  lehr search SEARCH.toml --stage score                # up to the scores\n"
        "  lehr search SEARCH.toml --budget.parameters='50 %'   # another budget; scores are kept\n"
        "  lehr launch -n 4 -- search SEARCH.toml               # ranks share training and measuring of variants\n\n",
        ConfigObject::of(options),
        "\nKeys of SEARCH.toml:\n" + help_text<search::SearchConfig>());
  }
  require(arguments.positionals.size() == 1, "lehr search: expected one file; see lehr search --help");
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto wanted = from_node<search::SearchConfig>(sources, arguments.positionals[0]);
  const Node run_sources = merge_sources({.file = wanted.search.config, .overrides = {}});
  const auto config = from_node<train::TrainConfig>(run_sources, wanted.search.config);
  // Some stages are the main rank's work, for which the others wait without a limit. A rank that fails is noticed
  // anyway.
  StopNotice notice("search", "before the first stage; nothing was written");
  std::atomic<int> code = 0;
  RankSettings settings{.device = config.training.device, .comm = config.comm, .notice = &notice};
  settings.comm.train_timeout_seconds = kLongestWait;
  start(settings, [&](mesh::Transport* transport) {
    with_places(sources, [&] {
      try {
        if (run_search(wanted, config, options, specs, command_line_of("search", args), transport, notice)) {
          code = 128 + (notice.received() != 0 ? notice.received() : SIGTERM);  // another rank may have received it
        }
      } catch (const mesh::PeerFailure&) {
        if (notice.received() == 0) {
          throw;
        }
        code = 128 + notice.received();  // the main rank ended at once by the signal that this one has kept
      }
      return 0;
    });
  });
  if (code != 0) {
    notice.tell(code - 128);
  }
  return code;
}

}  // namespace lehr::app

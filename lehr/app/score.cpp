// lehr score CONFIG.toml --output DIR
#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/app/command.h"
#include "lehr/app/model_and_data.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/progress.h"
#include "lehr/config/command_line.h"
#include "lehr/config/node_list.h"
#include "lehr/config/suggest.h"
#include "lehr/prune/score_model.h"
#include "lehr/train/device.h"
#include "lehr/train/load_on_ranks.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
struct ScoreOptions {
  std::optional<std::string> model;
  std::string output;
  std::optional<std::string> kinds;
  std::string ffn_method = "iterative";
  std::string expert_method = "mse";
  int64_t max_rows = 256;
  bool held_out = false;
  void fields(FieldVisitor& v) {
    v.optional("model", model, "Folder of a model; unset: the newest checkpoint of the config's run.");
    v.required("output", output, "Folder for scores.json and scores.safetensors; scores in it are replaced.");
    v.optional(
        "kinds",
        kinds,
        "Kinds of parts to score, separated by commas: ffn_channels, kv_heads, experts, expert_channels, "
        "shared_channels, attention, ffn; unset: all that the model has.");
    v.optional(
        "ffn_method",
        ffn_method,
        "For ffn_channels and shared_channels. iterative: repeatedly removes the channel that changes the output "
        "least; independent: scores each channel by itself; l2: uses activations only.",
        one_of({"iterative", "independent", "l2"}));
    v.optional(
        "expert_method",
        expert_method,
        "For experts. mse, cosine: distance between the outputs with and without the expert; voting: counts the "
        "router's choices.",
        one_of({"mse", "cosine", "voting"}));
    v.optional("max_rows", max_rows, "Maximum number of sequences of training.seq_len tokens.", positive());
    v.optional("held_out", held_out, "Use the held-out data instead of the training data.");
  }
};

std::set<prune::Kind> kinds_of(const std::string& list) {
  std::set<prune::Kind> kinds;
  std::vector<std::string> known;
  for (const prune::Kind kind : prune::kKinds) {
    known.emplace_back(prune::name_of(kind));
  }
  for (size_t first = 0; first <= list.size();) {  // an empty name is refused
    const size_t end = std::min(list.find(',', first), list.size());
    const std::string name = list.substr(first, end - first);
    const auto found = std::find(known.begin(), known.end(), name);
    const auto near = suggest(name, known);
    require(
        found != known.end(),
        "--kinds: expected names out of {}, found '{}'{}",
        fmt::join(known, ", "),
        name,
        near ? fmt::format("; did you mean {}?", *near) : "");
    kinds.insert(prune::kKinds[found - known.begin()]);
    first = end + 1;
  }
  return kinds;
}

prune::ScoreOptions score_options(const ScoreOptions& options) {
  using prune::ExpertMethod;
  using prune::FfnMethod;
  return {
      .kinds = options.kinds ? kinds_of(*options.kinds) : std::set<prune::Kind>(),
      .ffn = options.ffn_method == "iterative"     ? FfnMethod::iterative
             : options.ffn_method == "independent" ? FfnMethod::independent
                                                   : FfnMethod::l2,
      .experts = options.expert_method == "mse"      ? ExpertMethod::mse
                 : options.expert_method == "cosine" ? ExpertMethod::cosine
                                                     : ExpertMethod::voting};
}

// A part is scored as a whole, so each rank must have whole layers and sequences during a forward pass.
void check_score_mesh(const train::Ranks& ranks) {
  if (ranks.world_size() == 1) {
    return;
  }
  const auto& mesh = ranks.context()->parameters();
  const std::vector<std::pair<const char*, int64_t>> degrees{
      {"tensor_parallel", mesh.tensor_parallel},
      {"context_parallel", mesh.context_parallel},
      {"expert_parallel", mesh.expert_parallel},
      {"pipeline_parallel", mesh.pipeline_parallel},
      {"data_parallel_replicate", mesh.data_parallel_replicate}};
  for (const auto& [name, degree] : degrees) {
    require(
        degree == 1,
        "parallelism.{}_degree: lehr score needs whole layers and sequences on each rank, and no replicas, so only "
        "parallelism.data_parallel_shard_degree may exceed 1; expected 1, found {}",
        name,
        degree);
  }
}

std::string unchanged(const std::string& output) {
  return output + " is unchanged";
}

// One rank's part. Each rank holds a shard of the weights and scores all sequences, and the first one writes.
void score_on(
    train::TrainConfig config,
    const ScoreOptions& options,
    const train::TrainSpecs& specs,
    mesh::Transport* transport,
    StopNotice& notice) {
  const prune::ScoreOptions wanted = score_options(options);
  const train::Ranks ranks = ranks_of(config.parallelism, transport);
  ranks.require_same("config", to_toml(config));
  check_score_mesh(ranks);
  const at::Device device = train::choose_device(config.training.device, transport);
  require(
      config.training.task != train::TaskKind::embedding,
      "lehr score: training.task: parts of embedding models are not scored; expected another task, found embedding");
  config.data.repeat = false;
  Logger log("", !ranks.is_main());
  const auto folder = folder_of_model(config, options.model, ranks);
  ModelAndData found;
  ranks.main_first([&] {
    prune::require_writable(options.output);
    found = open_model_and_data(config, folder, specs, log, ranks.is_main());
  });
  const pretrained::ModelFolder& opened = found.model;
  const train::RunData& data = found.data;
  require(
      !opened.has_adapters(),
      "{}: holds adapters, whose parts are those of their base; merge them into it first: lehr merge --adapter {}",
      folder.string(),
      folder.string());
  require(
      !options.held_out || data.validation,
      "lehr score: --held-out: the config has no held-out data; set data.validation_fraction or data.validation_path");
  const auto model = train::load_on_ranks(opened, specs, config, ranks, device);

  const auto rows = train::RowShare::all(std::min(config.validation.local_batch_size, options.max_rows));
  const ProgressClock clock;
  prune::Scores scores = prune::score_model(
      *model,
      specs.families().descriptor_of_hf_folder(folder),
      {.task = *found.task,
       .open =
           [&] { return (options.held_out ? found.data.validation : found.data.train_once)(rows, options.max_rows); },
       .progress =
           [&](int64_t done, int64_t all) {
             log.live(clock.text("score, batches", done, all));
             notice.set(fmt::format("after {} of {} batches; {}", done, all, unchanged(options.output)));
           }},
      wanted);
  log.end_live();
  if (!ranks.is_main()) {
    return;
  }
  scores.facts.set("model", Node(std::filesystem::weakly_canonical(folder).filename().string()));
  scores.facts.set("model_type", Node(opened.args->model_type()));
  scores.facts.set("layers", node_list(opened.args->block_configs(), [](const descriptor::BlockConfig& block) {
                     return Node(descriptor::describe(block));
                   }));
  scores.facts.set("data", Node(options.held_out ? "held out" : "training"));
  notice.defer();  // both files or none
  prune::write_scores(options.output, scores);

  const int64_t tokens = scores.facts.at("num_tokens").as_int();
  for (const auto& [kind, formula] : scores.facts.at("formulas").entries()) {
    fmt::print("{}: {}\n", kind, formula.as_string());
  }
  fmt::print("{}: scores of {} by {} tokens\n", options.output, folder.string(), tokens);
}
}  // namespace

int score(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start) {
  ScoreOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<train::TrainConfig>());
  if (arguments.help) {
    return print_help(
        "lehr score CONFIG.toml --output DIR [--model DIR] [--section.key=value ...]\n\n"
        "Runs a model on the data of a config and computes the importance of each of its parts: a score for each FFN\n"
        "channel, each KV head, each expert of an MoE layer, and for the attention and the FFN of each layer as a\n"
        "whole. lehr prune makes a smaller model of the parts with the highest scores.\n\n"
        "  lehr score CONFIG.toml --output scores                       # all kinds of parts that the model has\n"
        "  lehr score CONFIG.toml --output scores --kinds kv_heads,ffn  # only these\n\n"
        "Batches have validation.local_batch_size sequences. docs/score.md has the formulas.\n\n"
        "A model that needs several devices is sharded over them; each rank scores all sequences:\n\n"
        "  lehr launch -n 4 -- score CONFIG.toml --output scores\n\n",
        ConfigObject::of(options));
  }
  require(arguments.positionals.size() == 1, "lehr score: expected one config file; see lehr score --help");
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  StopNotice notice("score", "before the first batch; " + unchanged(options.output));
  start({.device = config.training.device, .comm = config.comm, .notice = &notice}, [&](mesh::Transport* transport) {
    with_places(sources, [&] {
      score_on(config, options, specs, transport, notice);
      return 0;
    });
  });
  return 0;
}

}  // namespace lehr::app

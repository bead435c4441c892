// lehr score CONFIG.toml --output DIR
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "app/command.h"
#include "app/model_and_data.h"
#include "app/models.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/suggest.h"
#include "lehr/prune/score_model.h"
#include "lehr/train/device.h"
#include "lehr/train/precision.h"

namespace lehr::app {

namespace {
struct Options {
  std::optional<std::string> model;
  std::string output;
  std::optional<std::string> kinds;
  std::string ffn_method = "iterative";
  std::string expert_method = "mse";
  int64_t max_rows = 256;
  bool held_out = false;
  void fields(FieldVisitor& v) {
    v.optional("model", model, "Folder of a model; not given: the newest checkpoint of the config's run.");
    v.required("output", output, "Folder for scores.json and scores.safetensors; scores in it are replaced.");
    v.optional(
        "kinds",
        kinds,
        "What to score, with commas between: ffn_channels, kv_heads, experts, expert_channels, attention, ffn; not "
        "given: all that the model has.");
    v.optional(
        "ffn_method",
        ffn_method,
        "ffn_channels: iterative removes one channel after the other, each time the one that changes the output "
        "least; independent judges each by itself; l2 looks at activations only.",
        one_of({"iterative", "independent", "l2"}));
    v.optional(
        "expert_method",
        expert_method,
        "experts: mse or cosine distance of the output to that without the expert; voting counts the router's choices.",
        one_of({"mse", "cosine", "voting"}));
    v.optional(
        "max_rows", max_rows, "Rows of training.seq_len tokens to look at, at most; not given: 256.", positive());
    v.optional("held_out", held_out, "Look at the held-out data instead of the training data.");
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

prune::ScoreOptions score_options(const Options& options) {
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

void write(train::TrainConfig config, const Options& options) {
  const prune::ScoreOptions wanted = score_options(options);
  prune::require_writable(options.output);
  const at::Device device = train::choose_device(config.training.device);
  config.data.repeat = false;
  const auto [folder, opened, tokenizer, data, task] = open_model_and_data(config, options.model);
  require(
      !opened.has_adapters(),
      "{}: holds adapters, whose parts are those of their base; make a model of both first: lehr merge --adapter {}",
      folder.string(),
      folder.string());
  require(
      !options.held_out || data.validation,
      "lehr score: --held-out: the config holds no data out; set data.validation_fraction or data.validation_path");
  const auto families = models().families();
  const auto& descriptor = families.descriptor_of_hf_folder(folder);
  const auto model = opened.load(device, train::compute_type(config.training));

  Logger log;
  const auto rows = train::RowShare::all(std::min(config.validation.local_batch_size, options.max_rows));
  const auto& source = options.held_out ? data.validation : data.train_once;
  prune::Scores scores = prune::score_model(
      *model,
      descriptor,
      {.task = *task,
       .open = [&source, rows, most = options.max_rows] { return source(rows, most); },
       .progress = [&](int64_t done, int64_t all) { log.live(fmt::format("scored {} of {} batches", done, all)); }},
      wanted);
  log.end_live();
  scores.facts.set("model", Node(std::filesystem::weakly_canonical(folder).filename().string()));
  scores.facts.set("model_type", Node(opened.args->model_type()));
  Node layers = Node::make_list();
  for (const auto& block : opened.args->block_configs()) {
    layers.push_back(Node(descriptor::describe(block)));
  }
  scores.facts.set("layers", std::move(layers));
  scores.facts.set("data", Node(options.held_out ? "held out" : "training"));
  prune::write_scores(options.output, scores);

  const int64_t tokens = scores.facts.at("num_tokens").as_int();
  for (const auto& [kind, formula] : scores.facts.at("formulas").entries()) {
    fmt::print("{}: {}\n", kind, formula.as_string());
  }
  fmt::print("{}: scores of {} by {} tokens\n", options.output, folder.string(), tokens);
}
}  // namespace

int score(const std::vector<std::string>& args) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr score CONFIG.toml --output DIR [--model DIR] [--section.key=value ...]\n\n"
         "Runs a model on the data of a config and says how much each of its parts matters: a number for each channel\n"
         "of a feed-forward block, each KV head, each expert of a mixture, and for attention and feed-forward of each\n"
         "layer as a whole. Higher is a part to keep. lehr prune makes a smaller model by them.\n\n"
         "  lehr score CONFIG.toml --output scores                       all that the model has\n"
         "  lehr score CONFIG.toml --output scores --kinds kv_heads,ffn  only these\n\n"
         "Takes validation.local_batch_size rows at a time. docs/score.md has the formulas.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(arguments.positionals.size() == 1, "lehr score: expected one config file; see lehr score --help");
  const Node sources = merge_sources({.file = arguments.positionals[0], .overrides = arguments.overrides});
  const auto config = from_node<train::TrainConfig>(sources, arguments.positionals[0]);
  with_places(sources, [&] {
    write(config, options);
    return 0;
  });
  return 0;
}

}  // namespace lehr::app

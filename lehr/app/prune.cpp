// lehr prune --model DIR --scores DIR --ffn-width N ... --output DIR
#include "lehr/prune/prune.h"

#include <fmt/format.h>

#include <charconv>

#include "lehr/app/command.h"
#include "lehr/app/stop_notice.h"
#include "lehr/app/written_model.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/printable.h"
#include "lehr/config/command_line.h"
#include "lehr/prune/choose.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
using descriptor::BlockConfig;

struct PruneOptions {
  std::string model;
  std::string output;
  std::optional<std::string> scores;
  std::optional<std::string> like;
  std::optional<std::string> drop_attention_layers;
  std::optional<std::string> drop_ffn_layers;
  std::optional<std::string> layers;
  std::optional<int64_t> seed;
  bool subblocks = false;
  prune::PruneOptions chosen;

  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder of the parent, with config.json and weights.");
    v.required("output", output, "Folder to write; it must not exist.");
    v.optional("scores", scores, "Folder of scores of this model, written by lehr score.");
    v.optional("ffn_width", chosen.ffn_width, "Channels of each feed-forward block.", positive());
    v.optional(
        "kv_heads",
        chosen.kv_heads,
        "KV heads of each attention block; must divide their present number. All query heads are kept: those of a "
        "removed KV head read another one, with zero columns in o_proj.",
        positive());
    v.optional(
        "experts", chosen.experts, "Experts of each MoE layer; at least as many as a token is routed to.", positive());
    v.optional("expert_width", chosen.expert_width, "Channels of each expert.", positive());
    v.optional(
        "shared_expert_width", chosen.shared_expert_width, "Channels of each MoE layer's shared expert.", positive());
    v.optional(
        "drop_attention",
        chosen.drop_attention,
        "Number of attention blocks to remove, lowest score first.",
        at_least(0));
    v.optional("drop_ffn", chosen.drop_ffn, "Number of FFNs or MoE layers to remove, lowest score first.", at_least(0));
    v.optional(
        "drop_attention_layers",
        drop_attention_layers,
        "Layers whose attention is removed, such as 3,5,10-12; needs no scores.");
    v.optional("drop_ffn_layers", drop_ffn_layers, "Layers whose FFN is removed; needs no scores.");
    v.optional(
        "layers",
        layers,
        "Layers that the sizes apply to, and that --drop-attention and --drop-ffn choose from, such as 4-11 or "
        "0,2,4-7; unset: all. --drop-attention-layers and --drop-ffn-layers do not depend on it.");
    v.choice(
        "by",
        chosen.by,
        {{"score", prune::By::score}, {"random", prune::By::random}, {"first", prune::By::first}},
        "Parts to keep: those with the highest scores, random ones as a control, or the first by index.");
    v.optional("seed", seed, "Seed of --by random; unset: 0.", at_least(0));
    v.optional(
        "average_kv",
        chosen.average_kv,
        "Average groups of neighbouring KV heads instead of removing heads; needs no scores, and keeps query heads "
        "unchanged.");
    v.optional(
        "scale_pruned_weights",
        chosen.scale_pruned_weights,
        "Multiply the down projections of narrower FFNs by channels before / channels after.");
    v.optional(
        "like",
        like,
        "The pruning.json of another child, instead of scores and sizes: prunes --model, which has the shape of that "
        "child's parent, in the same way.");
    v.optional(
        "subblocks", subblocks, "Write a file per sub-block, in subblocks_safetensors/, with an ordinary index.");
  }
};

constexpr const char* kHelp =
    "lehr prune --model DIR --scores SCORES [--ffn-width N] [--kv-heads N] [...] --output CHILD\n\n"
    "Makes a smaller model of the most important parts of a trained one: narrower FFNs, fewer KV heads, fewer or\n"
    "narrower experts, layers without attention or FFN. CHILD is an ordinary model folder, or a heterogeneous one\n"
    "(docs/descriptors.md) if its layers differ. It can be trained further, evaluated, or split into sub-blocks; its\n"
    "pruning.json records the parts that were kept.\n\n"
    "  lehr score CONFIG.toml --model teacher --output scores    # the importance of each part\n"
    "  lehr prune --model teacher --scores scores --ffn-width 1536 --kv-heads 4 --output child\n"
    "  lehr prune --model teacher --scores scores --ffn-width 1024 --layers 4-11 --output child2\n"
    "  lehr prune --model teacher --by random --ffn-width 1536 --output control\n"
    "  lehr prune --model teacher --drop-attention-layers 3,5 --output child3\n\n"
    "A layer that already has the requested size is not changed. See docs/prune.md.\n\n";

int64_t layer_of(std::string_view text, const std::string& whole, const char* option) {
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  require(
      error == std::errc() && end == text.data() + text.size() && layer >= 0 && layer < 1'000'000,
      "lehr prune: {}: expected layers as 3,5,10-12, found \"{}\"",
      option,
      whole);
  return layer;
}

// "3,5,10-12"
std::vector<int64_t> layers_of(const std::string& text, const char* option) {
  std::vector<int64_t> layers;
  for (size_t begin = 0; begin <= text.size();) {  // an empty part, at the end too, is refused
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int64_t first = layer_of(part.substr(0, dash), text, option);
    const int64_t last = dash == std::string_view::npos ? first : layer_of(part.substr(dash + 1), text, option);
    require(first <= last, "lehr prune: {}: {}: expected the lower number first", option, part);
    for (int64_t layer = first; layer <= last; ++layer) {
      layers.push_back(layer);
    }
    begin = end + 1;
  }
  return layers;
}

prune::Pruning choose(PruneOptions& options, const std::vector<BlockConfig>& blocks) {
  prune::PruneOptions& chosen = options.chosen;
  if (options.drop_attention_layers) {
    chosen.drop_attention_layers = layers_of(*options.drop_attention_layers, "--drop-attention-layers");
  }
  if (options.drop_ffn_layers) {
    chosen.drop_ffn_layers = layers_of(*options.drop_ffn_layers, "--drop-ffn-layers");
  }
  if (options.layers) {
    chosen.layers = layers_of(*options.layers, "--layers");
  }
  require(!options.seed || chosen.by == prune::By::random, "lehr prune: --seed: needs --by random");
  chosen.seed = static_cast<uint64_t>(options.seed.value_or(0));
  require(
      !options.scores || prune::needs_scores(chosen),
      "lehr prune: --scores: none of the other options uses scores; leave it out");
  std::optional<prune::Scores> scores;
  if (options.scores) {
    scores = prune::read_scores(*options.scores);
  }
  return prune::choose(chosen, blocks, scores ? &*scores : nullptr);
}

// The number of parts of all layers.
struct Parts {
  int64_t attentions = 0, kv_heads = 0, ffns = 0, channels = 0, experts = 0, expert_channels = 0, shared_channels = 0;
};

Parts count(const std::vector<BlockConfig>& blocks) {
  Parts parts;
  for (const BlockConfig& block : blocks) {
    parts.attentions += block.attention_is_no_op() ? 0 : 1;
    parts.ffns += block.ffn_is_no_op() ? 0 : 1;
    if (const auto* attention = std::get_if<descriptor::AttentionSubblock>(&block.attention)) {
      parts.kv_heads += attention->num_key_value_heads;
    }
    if (const auto* ffn = std::get_if<descriptor::FFNSubblock>(&block.ffn)) {
      parts.channels += ffn->intermediate_size;
    }
    if (const auto* moe = std::get_if<descriptor::MoESubblock>(&block.ffn)) {
      parts.experts += moe->num_local_experts;
      parts.expert_channels += moe->num_local_experts * moe->expert_intermediate_dim;
      parts.shared_channels += moe->shared_expert_intermediate_dim;
    }
  }
  return parts;
}

struct Costs {
  int64_t parameters;
  int64_t per_token;     // bytes of the KV cache
  int64_t per_sequence;  // bytes of states, which do not grow with the tokens
};

Costs costs_of(const descriptor::DecoderForm& form, const std::vector<descriptor::BlockConfig>& blocks) {
  const descriptor::Account one = account_for(form, blocks, {.num_tokens = 1}).total();
  const descriptor::Account two = account_for(form, blocks, {.num_tokens = 2}).total();
  return {
      .parameters = one.num_parameters,
      .per_token = static_cast<int64_t>(two.kv_cache_bytes - one.kv_cache_bytes),
      .per_sequence = static_cast<int64_t>(2 * one.kv_cache_bytes - two.kv_cache_bytes)};
}

std::string digits(double value) {
  return std::to_string(static_cast<int64_t>(value));
}

void print_change(const char* what, int64_t before, int64_t after, std::string (*text)(double) = digits) {
  if (before > 0) {
    const auto from = static_cast<double>(before), to = static_cast<double>(after);
    fmt::print("{:<22}{:>10} -> {:<10} {:.1f} %\n", what, text(from), text(to), 100.0 * to / from);
  }
}

void print_report(const prune::PruneReport& report, const std::optional<descriptor::DecoderForm>& form) {
  const Parts before = count(report.before);
  const Parts after = count(report.after);
  print_change("attention blocks", before.attentions, after.attentions);
  print_change("KV heads", before.kv_heads, after.kv_heads);
  print_change("FFNs and MoE layers", before.ffns, after.ffns);
  print_change("FFN channels", before.channels, after.channels);
  print_change("experts", before.experts, after.experts);
  print_change("channels of experts", before.expert_channels, after.expert_channels);
  print_change("shared channels", before.shared_channels, after.shared_channels);
  if (form) {
    const Costs then = costs_of(*form, report.before), now = costs_of(*form, report.after);
    print_change("parameters", then.parameters, now.parameters, human_count);
    print_change("KV cache per token", then.per_token, now.per_token, human_bytes);
    print_change("states per sequence", then.per_sequence, now.per_sequence, human_bytes);
  }
}

void prune_model(
    PruneOptions& options, const descriptor::ModelFamilies& families, const std::function<void()>& stop_if_asked) {
  pretrained::require_new_folder(options.output);
  const auto parent = families.from_hf_folder(options.model);
  const auto blocks = parent->block_configs();
  prune::Pruning pruning;
  if (options.like) {
    PruneOptions rest;
    rest.model = options.model;
    rest.output = options.output;
    rest.like = options.like;
    rest.subblocks = options.subblocks;
    require(
        object_to_toml(ConfigObject::of(rest)) == object_to_toml(ConfigObject::of(options)),
        "lehr prune: --like: already lists all parts to keep; leave scores, sizes and layers out");
    pruning = prune::read_pruning(*options.like, static_cast<int64_t>(blocks.size()));
    prune::child_blocks(pruning, blocks, *options.like + ": ");
  } else {
    pruning = choose(options, blocks);
  }
  const prune::PruneReport report = prune::write_pruned(
      {.model = options.model, .output = options.output, .subblocks = options.subblocks, .before_each = stop_if_asked},
      pruning,
      families);
  for (const std::string& name : report.left_out) {
    fmt::print("{}: left out, because the model does not use it\n", printable(name));
  }
  if (!report.rescaled_keys.empty()) {
    fmt::print(
        "warning: --kv-heads: the norm of the keys spans all heads of a layer, in the child the kept ones, so the "
        "keys of {} layers have another scale: the child needs training more than those of other families "
        "(docs/prune.md)\n",
        report.rescaled_keys.size());
  }
  print_report(report, parent->decoder_form());
  print_written(options.output, report);
}
}  // namespace

int prune(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  PruneOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    return print_help(kHelp, ConfigObject::of(options));
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr prune: takes options only; see lehr prune --help");
  return write_or_stop("prune", options.output, [&](const std::function<void()>& stop_if_asked) {
    prune_model(options, specs.families(), stop_if_asked);
  });
}

}  // namespace lehr::app

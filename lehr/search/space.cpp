#include "lehr/search/space.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "lehr/base/error.h"
#include "lehr/descriptor/block_account.h"
#include "lehr/prune/choose.h"

namespace lehr::search {

namespace {
using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;

// Shares of a width that a search tries by itself, as in Puzzle's space without its closest neighbours.
constexpr double kShares[] = {0.75, 0.5, 0.25, 0.125};
// Widths are multiples of this, for fast matmuls and an even split by tensor parallelism.
constexpr int64_t kWidthStep = 8;

std::vector<int64_t> derived_widths(int64_t width) {
  std::vector<int64_t> sizes;
  for (const double share : kShares) {
    const auto rounded = static_cast<int64_t>(share * static_cast<double>(width)) / kWidthStep * kWidthStep;
    if (rounded > 0 && rounded < width && (sizes.empty() || sizes.back() != rounded)) {
      sizes.push_back(rounded);
    }
  }
  return sizes;
}

std::vector<int64_t> derived_heads(int64_t heads) {
  std::vector<int64_t> sizes;
  for (int64_t size = heads - 1; size > 0; --size) {
    if (heads % size == 0) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

std::vector<int64_t> derived_experts(const MoESubblock& moe) {
  std::vector<int64_t> sizes;
  for (const double share : kShares) {
    const auto size = static_cast<int64_t>(share * static_cast<double>(moe.num_local_experts));
    if (size >= moe.num_experts_per_tok && size < moe.num_local_experts && (sizes.empty() || sizes.back() != size)) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

// The sizes to try in a layer, largest first: the listed ones that are smaller than its own, or derived ones.
std::vector<int64_t> sizes_below(
    const std::vector<int64_t>& listed, int64_t own, const std::function<std::vector<int64_t>()>& derived) {
  if (listed.empty()) {
    return derived();
  }
  const std::set<int64_t, std::greater<>> sorted(listed.begin(), listed.end());
  std::vector<int64_t> sizes;
  std::copy_if(sorted.begin(), sorted.end(), std::back_inserter(sizes), [own](int64_t size) { return size < own; });
  return sizes;
}

// The maximum number of tokens that a token attends to in a layer with this attention.
int64_t seen_tokens(const SpaceConfig& config, const AttentionSubblock& attention, size_t layer) {
  const descriptor::DecoderForm form{.windows = config.model_windows};
  const int64_t window = form.window(layer, attention);
  return window > 0 ? window : std::numeric_limits<int64_t>::max();
}

// Adds the variants of one layer.
class LayerBuilder {
 public:
  LayerBuilder(
      const SpaceConfig& config, const std::vector<BlockConfig>& teacher, const prune::Scores& scores, size_t layer)
      : config_(config), teacher_(teacher), scores_(scores), layer_(layer) {}

  LayerSpace build() {
    LayerSpace space;
    const BlockConfig& block = teacher_[layer_];
    const Variant own{.name = "teacher", .keeps = {}, .block = block};
    space.attention.push_back(own);
    space.ffn.push_back(own);
    space.attention.front().is_no_op = block.attention_is_no_op();
    space.ffn.front().is_no_op = block.ffn_is_no_op();
    if (const auto* attention = std::get_if<AttentionSubblock>(&block.attention)) {
      add_heads_and_windows(space.attention, *attention);
      add_linear(space.attention, config_.attention_linear, {.linear_attention = true});
    }
    if (!block.attention_is_no_op()) {
      add_no_op(space.attention, config_.attention_no_op, {.no_attention = true});
    }
    if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
      add_widths(space.ffn, ffn->intermediate_size);
    }
    if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
      add_experts(space.ffn, *moe);
    }
    if (!block.ffn_is_no_op() && !block.ffn_is_linear()) {
      add_linear(space.ffn, config_.ffn_linear, {.linear_ffn = true});
    }
    if (!block.ffn_is_no_op()) {
      add_no_op(space.ffn, config_.ffn_no_op, {.no_ffn = true});
    }
    return space;
  }

 private:
  void add(std::vector<Variant>& variants, const std::string& name, const prune::LayerKeeps& keeps) const {
    prune::Pruning one{.layers = std::vector<prune::LayerKeeps>(teacher_.size())};
    one.layers[layer_] = keeps;
    variants.push_back(
        {.name = name,
         .keeps = keeps,
         .block = prune::child_blocks(one, teacher_, "space: ")[layer_],
         .is_no_op = keeps.no_attention || keeps.no_ffn});
  }

  void add_chosen(std::vector<Variant>& variants, const std::string& name, prune::PruneOptions options) const {
    options.layers = {static_cast<int64_t>(layer_)};
    add(variants, name, prune::choose(options, teacher_, &scores_).layers[layer_]);
  }

  void add_no_op(std::vector<Variant>& variants, bool wanted, const prune::LayerKeeps& keeps) const {
    if (wanted) {
      add(variants, "no-op", keeps);
    }
  }

  void add_linear(std::vector<Variant>& variants, bool wanted, const prune::LayerKeeps& keeps) const {
    if (wanted && config_.sizes) {
      add(variants, "linear", keeps);
    }
  }

  // All combinations of a number of KV heads and a window, but the teacher's.
  void add_heads_and_windows(std::vector<Variant>& variants, const AttentionSubblock& attention) const {
    if (!config_.sizes) {
      return;
    }
    const int64_t own = attention.num_key_value_heads;
    auto heads = sizes_below(config_.kv_heads, own, [own] { return derived_heads(own); });
    auto windows =
        sizes_below(config_.windows, seen_tokens(config_, attention, layer_), [] { return std::vector<int64_t>(); });
    heads.insert(heads.begin(), own);
    windows.insert(windows.begin(), 0);  // the layer's own
    for (const int64_t size : heads) {
      require(own % size == 0, "space.kv_heads: {} does not divide the {} KV heads of layer {}", size, own, layer_);
      for (const int64_t window : windows) {
        add_attention(variants, size < own ? std::optional(size) : std::nullopt, window);
      }
    }
  }

  // Adds one of them, unless it is the teacher's own.
  void add_attention(std::vector<Variant>& variants, std::optional<int64_t> heads, int64_t window) const {
    prune::LayerKeeps keeps;
    std::vector<std::string> names;
    if (heads) {
      const prune::PruneOptions options{.kv_heads = heads, .layers = std::vector{static_cast<int64_t>(layer_)}};
      keeps = prune::choose(options, teacher_, &scores_).layers[layer_];
      names.push_back(fmt::format("kv_heads {}", *heads));
    }
    if (window > 0) {
      keeps.window = window;
      names.push_back(fmt::format("window {}", window));
    }
    if (!names.empty()) {
      add(variants, fmt::format("{}", fmt::join(names, ", ")), keeps);
    }
  }

  void add_widths(std::vector<Variant>& variants, int64_t own) const {
    if (!config_.sizes) {
      return;
    }
    for (const int64_t size : sizes_below(config_.ffn_widths, own, [own] { return derived_widths(own); })) {
      add_chosen(variants, fmt::format("ffn_width {}", size), {.ffn_width = size});
    }
  }

  // All combinations of a number of experts, their width, the experts per token and the width of the shared expert, but
  // the teacher's.
  void add_experts(std::vector<Variant>& variants, const MoESubblock& moe) const {
    if (!config_.sizes) {
      return;
    }
    auto counts = sizes_below(config_.experts, moe.num_local_experts, [&] {
      return config_.fewer_experts ? derived_experts(moe) : std::vector<int64_t>();
    });
    auto widths = sizes_below(config_.expert_widths, moe.expert_intermediate_dim, [&] {
      return derived_widths(moe.expert_intermediate_dim);
    });
    auto per_token =
        sizes_below(config_.experts_per_token, moe.num_experts_per_tok, [] { return std::vector<int64_t>(); });
    auto shared = sizes_below(
        config_.shared_expert_widths, moe.shared_expert_intermediate_dim, [] { return std::vector<int64_t>(); });
    counts.insert(counts.begin(), moe.num_local_experts);
    shared.insert(shared.begin(), moe.shared_expert_intermediate_dim);
    widths.insert(widths.begin(), moe.expert_intermediate_dim);
    per_token.insert(per_token.begin(), moe.num_experts_per_tok);
    for (const int64_t count : counts) {
      require(
          count >= per_token.back(),
          "space.experts: {} are fewer than the {} experts of each token in layer {}",
          count,
          per_token.back(),
          layer_);
      for (const int64_t width : widths) {
        for (const int64_t chosen : per_token) {
          for (const int64_t of_shared : shared) {
            if (chosen <= count) {
              add_mixture(variants, moe, {count, chosen, width, of_shared});
            }
          }
        }
      }
    }
  }

  // Adds one of them, unless it is the teacher's own.
  void add_mixture(std::vector<Variant>& variants, const MoESubblock& own, const MoESubblock& wanted) const {
    prune::PruneOptions options{.layers = std::vector{static_cast<int64_t>(layer_)}};
    std::vector<std::string> names;
    if (wanted.num_local_experts < own.num_local_experts) {
      options.experts = wanted.num_local_experts;
      names.push_back(fmt::format("experts {}", wanted.num_local_experts));
    }
    if (wanted.expert_intermediate_dim < own.expert_intermediate_dim) {
      options.expert_width = wanted.expert_intermediate_dim;
      names.push_back(fmt::format("expert_width {}", wanted.expert_intermediate_dim));
    }
    if (wanted.shared_expert_intermediate_dim < own.shared_expert_intermediate_dim) {
      options.shared_expert_width = wanted.shared_expert_intermediate_dim;
      names.push_back(fmt::format("shared_expert_width {}", wanted.shared_expert_intermediate_dim));
    }
    prune::LayerKeeps keeps;
    if (options.experts || options.expert_width || options.shared_expert_width) {
      std::vector<BlockConfig> blocks = teacher_;
      std::get<MoESubblock>(blocks[layer_].ffn).num_experts_per_tok = wanted.num_experts_per_tok;
      keeps = prune::choose(options, blocks, &scores_).layers[layer_];
    }
    if (wanted.num_experts_per_tok < own.num_experts_per_tok) {
      keeps.experts_per_token = wanted.num_experts_per_tok;
      names.push_back(fmt::format("experts_per_token {}", wanted.num_experts_per_tok));
    }
    if (!names.empty()) {
      add(variants, fmt::format("{}", fmt::join(names, ", ")), keeps);
    }
  }

  const SpaceConfig& config_;
  const std::vector<BlockConfig>& teacher_;
  const prune::Scores& scores_;
  size_t layer_;
};

// Throws for a listed size that is smaller than that of no layer: it would be left out everywhere.
void require_used(const char* key, const std::vector<int64_t>& listed, const std::vector<int64_t>& own) {
  for (const int64_t size : listed) {
    require(
        std::any_of(own.begin(), own.end(), [size](int64_t of_layer) { return size < of_layer; }),
        "space.{}: {} is smaller than that of no layer; the layers have {}",
        key,
        size,
        own.empty() ? "none" : fmt::format("{}", fmt::join(std::set<int64_t>(own.begin(), own.end()), ", ")));
  }
}

// Throws for a listed window that is smaller than that of no layer.
void require_used_windows(const SpaceConfig& config, const std::vector<BlockConfig>& teacher) {
  int64_t largest = 0;
  for (size_t layer = 0; layer < teacher.size(); ++layer) {
    if (const auto* attention = std::get_if<AttentionSubblock>(&teacher[layer].attention)) {
      largest = std::max(largest, seen_tokens(config, *attention, layer));
    }
  }
  for (const int64_t window : config.windows) {
    const bool is_used = window < largest;
    require(
        is_used,
        "space.windows: {} is smaller than the window of no layer; {}",
        window,
        largest > 0 ? fmt::format("the largest has {} tokens", largest) : "no layer has attention");
  }
}

void require_used(const SpaceConfig& config, const std::vector<BlockConfig>& teacher) {
  std::vector<int64_t> heads, widths, experts, expert_widths, per_token, shared_widths;
  for (const BlockConfig& block : teacher) {
    if (const auto* attention = std::get_if<AttentionSubblock>(&block.attention)) {
      heads.push_back(attention->num_key_value_heads);
    }
    if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
      widths.push_back(ffn->intermediate_size);
    }
    if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
      experts.push_back(moe->num_local_experts);
      expert_widths.push_back(moe->expert_intermediate_dim);
      per_token.push_back(moe->num_experts_per_tok);
      if (moe->shared_expert_intermediate_dim > 0) {
        shared_widths.push_back(moe->shared_expert_intermediate_dim);
      }
    }
  }
  require_used("kv_heads", config.kv_heads, heads);
  require_used_windows(config, teacher);
  require_used("ffn_widths", config.ffn_widths, widths);
  require_used("experts", config.experts, experts);
  require_used("expert_widths", config.expert_widths, expert_widths);
  require_used("experts_per_token", config.experts_per_token, per_token);
  require_used("shared_expert_widths", config.shared_expert_widths, shared_widths);
}
}  // namespace

SearchSpace make_space(
    const SpaceConfig& config, const std::vector<BlockConfig>& teacher, const prune::Scores& scores) {
  require_used(config, teacher);
  SearchSpace space;
  for (size_t layer = 0; layer < teacher.size(); ++layer) {
    space.push_back(LayerBuilder(config, teacher, scores, layer).build());
  }
  require(
      !alternatives(space).empty(),
      "space: there is nothing to choose from: no layer has a sub-block that may be removed or made smaller; widen "
      "[space]");
  return space;
}

prune::Scores equal_scores(const std::vector<BlockConfig>& teacher) {
  prune::Scores scores;
  for (size_t i = 0; i < teacher.size(); ++i) {
    const auto set = [&](prune::Kind kind, at::IntArrayRef shape) {
      scores.values[{static_cast<int64_t>(i), kind}] = at::zeros(shape, at::kDouble);
    };
    if (const auto* attention = std::get_if<AttentionSubblock>(&teacher[i].attention)) {
      set(prune::Kind::kv_heads, {attention->num_key_value_heads});
    }
    if (const auto* ffn = std::get_if<FFNSubblock>(&teacher[i].ffn)) {
      set(prune::Kind::ffn_channels, {ffn->intermediate_size});
    }
    if (const auto* moe = std::get_if<MoESubblock>(&teacher[i].ffn)) {
      set(prune::Kind::experts, {moe->num_local_experts});
      set(prune::Kind::expert_channels, {moe->num_local_experts, moe->expert_intermediate_dim});
      set(prune::Kind::shared_channels, {moe->shared_expert_intermediate_dim});
    }
  }
  return scores;
}

std::vector<prune::Kind> needed_scores(const SpaceConfig& config, const std::vector<BlockConfig>& teacher) {
  std::set<prune::Kind> kinds;
  for (const BlockConfig& block : teacher) {
    const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
    if (attention != nullptr && attention->num_key_value_heads > 1) {
      kinds.insert(prune::Kind::kv_heads);
    }
    if (block.is_moe()) {
      kinds.insert(prune::Kind::expert_channels);
      if (config.fewer_experts) {
        kinds.insert(prune::Kind::experts);
      }
      if (!config.shared_expert_widths.empty()) {
        kinds.insert(prune::Kind::shared_channels);
      }
    } else if (std::holds_alternative<FFNSubblock>(block.ffn)) {
      kinds.insert(prune::Kind::ffn_channels);
    }
  }
  return config.sizes ? std::vector<prune::Kind>(kinds.begin(), kinds.end()) : std::vector<prune::Kind>();
}

}  // namespace lehr::search

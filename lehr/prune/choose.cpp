#include "lehr/prune/choose.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/config/node_list.h"

namespace lehr::prune {

namespace {
using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;
using Values = std::vector<double>;

// Throws a message such as "layer 3: has 8 KV heads, ...".
void require_enough(int64_t layer, int64_t has, const char* what, const char* option, int64_t wanted) {
  require(
      wanted > 0 && wanted <= has,
      "layer {}: has {} {}, so {} must be 1 to {}, found {}; --layers can exclude layers that already have fewer",
      layer,
      has,
      what,
      option,
      has,
      wanted);
}

By way_of(const PruneOptions& options) {
  return options.by.value_or(By::score);
}

// Returns whether any part is chosen by scores, at random or by its index.
bool chooses(const PruneOptions& options) {
  return options.ffn_width || (options.kv_heads && !options.average_kv) || options.experts || options.expert_width ||
         options.shared_expert_width || options.drop_attention != 0 || options.drop_ffn != 0;
}

// Refuses scores of another model: of layers that this model lacks, or with another number of layers in their facts.
void require_same_model(const Scores& scores, size_t num_layers) {
  const std::string folder = scores.folder.string();
  for (const auto& [place, values] : scores.values) {
    require(
        place.first < static_cast<int64_t>(num_layers),
        "{}: has {} of layer {}, but this model has layers 0 to {}; the scores were made for another model",
        folder,
        name_of(place.second),
        place.first,
        num_layers - 1);
  }
  const Node* layers = scores.facts.is_table() ? scores.facts.find("layers") : nullptr;
  require(
      layers == nullptr || !layers->is_list() || layers->size() == num_layers,
      "{}: scores of a model of {} layers, but this one has {}; they were made for another model",
      folder,
      layers == nullptr || !layers->is_list() ? 0 : layers->size(),
      num_layers);
}

class Chooser {
 public:
  Chooser(const PruneOptions& options, const std::vector<BlockConfig>& blocks, const Scores* scores)
      : options_(options), blocks_(blocks), scores_(scores) {
    pruning_.layers.resize(blocks.size());
    pruning_.scale_pruned_weights = options.scale_pruned_weights;
    if (options.layers) {
      require(!options.layers->empty(), "--layers: expected layers, found none");
      selected_ = *options.layers;
      require_layers(selected_, "--layers");
    } else {
      selected_.resize(blocks.size());
      std::iota(selected_.begin(), selected_.end(), 0);
    }
  }

  Pruning run() {
    drop(Kind::attention, options_.drop_attention, options_.drop_attention_layers, "--drop-attention");
    drop(Kind::ffn, options_.drop_ffn, options_.drop_ffn_layers, "--drop-ffn");
    int64_t heads = 0, channels = 0, moe_layers = 0, shared_experts = 0;
    for (const int64_t layer : selected_) {
      const BlockConfig& block = blocks_[static_cast<size_t>(layer)];
      LayerKeeps& keeps = pruning_.layers[static_cast<size_t>(layer)];
      const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
      if (attention != nullptr && !keeps.no_attention) {
        heads += 1;
        choose_heads(layer, attention->num_key_value_heads, keeps);
      }
      const auto* ffn = std::get_if<FFNSubblock>(&block.ffn);
      if (ffn != nullptr && !keeps.no_ffn) {
        channels += 1;
        if (options_.ffn_width) {
          require_enough(layer, ffn->intermediate_size, "FFN channels", "--ffn-width", *options_.ffn_width);
          keeps.ffn_channels = best(layer, Kind::ffn_channels, ffn->intermediate_size, *options_.ffn_width);
        }
      }
      const auto* moe = std::get_if<MoESubblock>(&block.ffn);
      if (moe != nullptr && !keeps.no_ffn) {
        moe_layers += 1;
        shared_experts += moe->shared_expert_intermediate_dim > 0 ? 1 : 0;
        choose_experts(layer, *moe, keeps);
        choose_shared(layer, moe->shared_expert_intermediate_dim, keeps);
      }
    }
    const char* all = "{}: none of the layers to prune has {}";
    require(!options_.kv_heads || heads > 0, fmt::runtime(all), "--kv-heads", "attention");
    require(!options_.ffn_width || channels > 0, fmt::runtime(all), "--ffn-width", "a feed-forward block");
    require(!options_.experts || moe_layers > 0, fmt::runtime(all), "--experts", "experts");
    require(!options_.expert_width || moe_layers > 0, fmt::runtime(all), "--expert-width", "experts");
    require(
        !options_.shared_expert_width || shared_experts > 0,
        fmt::runtime(all),
        "--shared-expert-width",
        "a shared expert");
    return std::move(pruning_);
  }

 private:
  void require_layers(const std::vector<int64_t>& layers, const char* option) const {
    for (const int64_t layer : layers) {
      require(
          layer >= 0 && layer < static_cast<int64_t>(blocks_.size()),
          "{}: the model has layers 0 to {}, but no layer {}",
          option,
          blocks_.size() - 1,
          layer);
      require(std::count(layers.begin(), layers.end(), layer) == 1, "{}: names layer {} twice", option, layer);
    }
  }

  bool has_subblock(Kind half, int64_t layer) const {
    const BlockConfig& block = blocks_[static_cast<size_t>(layer)];
    return half == Kind::attention ? !block.attention_is_no_op() : !block.ffn_is_no_op();
  }

  void drop(Kind half, int64_t count, const std::vector<int64_t>& layers, const std::string& option) {
    require(count == 0 || layers.empty(), "{0}: expected a number of layers, or {0}-layers; found both", option);
    require_layers(layers, (option + "-layers").c_str());
    for (const int64_t layer : layers) {
      require(has_subblock(half, layer), "{}-layers: layer {} has none", option, layer);
      drop_one(half, layer);
    }
    if (count == 0) {
      return;
    }
    std::vector<int64_t> candidates;
    Values values;
    for (const int64_t layer : selected_) {
      if (has_subblock(half, layer)) {
        candidates.push_back(layer);
        values.push_back(worth(layer, half, {1}, layer)[0]);
      }
    }
    const auto num = static_cast<int64_t>(candidates.size());
    require(
        count > 0 && count <= num,
        "{}: expected 1 to {}, the number of layers that have one; found {}",
        option,
        num,
        count);
    const std::vector<int64_t> kept = best_of(values, num - count);
    for (int64_t i = 0; i < num; ++i) {
      if (!std::binary_search(kept.begin(), kept.end(), i)) {
        drop_one(half, candidates[static_cast<size_t>(i)]);
      }
    }
  }

  void drop_one(Kind half, int64_t layer) {
    LayerKeeps& keeps = pruning_.layers[static_cast<size_t>(layer)];
    (half == Kind::attention ? keeps.no_attention : keeps.no_ffn) = true;
  }

  // The most KV heads of a layer to prune.
  int64_t most_heads() const {
    int64_t most = 0;
    for (const int64_t layer : selected_) {
      if (const auto* attention = std::get_if<AttentionSubblock>(&blocks_[static_cast<size_t>(layer)].attention)) {
        most = std::max(most, attention->num_key_value_heads);
      }
    }
    return most;
  }

  void choose_heads(int64_t layer, int64_t has, LayerKeeps& keeps) {
    if (!options_.kv_heads) {
      return;
    }
    // One head is no error beside layers with heads to choose from: gated DeltaNet, or a layer that was cut before.
    if (has > 1 || most_heads() == 1) {
      require_enough(layer, has, "KV heads", "--kv-heads", *options_.kv_heads);
    }
    if (has == 1) {
      return;  // nothing to choose; latent attention and gated DeltaNet have no scores of heads
    }
    if (options_.average_kv) {
      keeps.averaged_kv_heads = *options_.kv_heads;
    } else {
      keeps.kv_heads = best(layer, Kind::kv_heads, has, *options_.kv_heads);
    }
  }

  void choose_experts(int64_t layer, const MoESubblock& moe, LayerKeeps& keeps) {
    if (options_.experts) {
      require_enough(layer, moe.num_local_experts, "experts", "--experts", *options_.experts);
      keeps.experts = best(layer, Kind::experts, moe.num_local_experts, *options_.experts);
    }
    if (!options_.expert_width) {
      return;
    }
    const int64_t width = moe.expert_intermediate_dim;
    require_enough(layer, width, "channels in each expert", "--expert-width", *options_.expert_width);
    const Values values = worth(layer, Kind::expert_channels, {moe.num_local_experts, width});
    for (int64_t expert = 0; expert < moe.num_local_experts; ++expert) {
      if (keeps.experts.empty() || std::binary_search(keeps.experts.begin(), keeps.experts.end(), expert)) {
        const auto begin = values.begin() + expert * width;
        keeps.expert_channels.push_back(best_of(Values(begin, begin + width), *options_.expert_width));
      }
    }
  }

  void choose_shared(int64_t layer, int64_t width, LayerKeeps& keeps) {
    if (options_.shared_expert_width && width > 0) {
      const int64_t wanted = *options_.shared_expert_width;
      require_enough(layer, width, "channels in the shared expert", "--shared-expert-width", wanted);
      keeps.shared_channels = best(layer, Kind::shared_channels, width, wanted);
    }
  }

  std::vector<int64_t> best(int64_t layer, Kind kind, int64_t has, int64_t wanted) const {
    return best_of(worth(layer, kind, {has}), wanted);
  }

  // Returns a value for each element of `shape`, higher for parts to keep. `first` is the index of a single element
  // among those that it is compared with.
  Values worth(int64_t layer, Kind kind, const std::vector<int64_t>& shape, int64_t first = 0) const {
    const int64_t count = shape.front() * (shape.size() > 1 ? shape.back() : 1);
    Values values(static_cast<size_t>(count));
    if (way_of(options_) == By::score) {
      const at::Tensor scores = scores_of(layer, kind, shape);
      std::copy_n(scores.const_data_ptr<double>(), count, values.begin());
      return values;
    }
    const RandomStream chance(options_.seed, fmt::format("layers.{}.{}", layer, name_of(kind)));
    for (int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<uint64_t>(i);
      values[number] =
          way_of(options_) == By::random ? chance.uniform(number) : -static_cast<double>(first + i % shape.back());
    }
    return values;
  }

  at::Tensor scores_of(int64_t layer, Kind kind, const std::vector<int64_t>& shape) const {
    require(scores_ != nullptr, "{}: scores are needed; set --scores, or choose --by random or first", name_of(kind));
    const std::string folder = scores_->folder.string();
    const at::Tensor* found = scores_->find(layer, kind);
    require(
        found != nullptr,
        "{}: has no {} {}; lehr score makes them",
        folder,
        name_of(kind),
        scores_->has(kind) ? fmt::format("of layer {}", layer) : "at all");
    require(
        found->sizes() == at::IntArrayRef(shape),
        "{}: layers.{}.{}: expected scores of shape ({}) for this model, found ({}); they were made for another model",
        folder,
        layer,
        name_of(kind),
        fmt::join(shape, ", "),
        fmt::join(found->sizes(), ", "));
    return found->to(at::kCPU, at::kDouble).contiguous();
  }

  const PruneOptions& options_;
  const std::vector<BlockConfig>& blocks_;
  const Scores* scores_;
  std::vector<int64_t> selected_;
  Pruning pruning_;
};

Node facts_of(const PruneOptions& options, const Scores* scores) {
  Node facts = Node::make_table();
  if (chooses(options)) {
    const By by = way_of(options);
    facts.set("by", Node(by == By::score ? "score" : by == By::random ? "random" : "first"));
    if (by == By::score && scores != nullptr) {
      facts.set("scores", Node(scores->folder.string()));
    }
    if (by == By::random) {
      facts.set("seed", Node(static_cast<int64_t>(options.seed)));
    }
  }
  const auto add = [&](const char* key, std::optional<int64_t> size) {
    if (size.value_or(0) > 0) {
      facts.set(key, Node(*size));
    }
  };
  add("ffn_width", options.ffn_width);
  add("kv_heads", options.kv_heads);
  add("experts", options.experts);
  add("expert_width", options.expert_width);
  add("shared_expert_width", options.shared_expert_width);
  add("drop_attention", options.drop_attention);
  add("drop_ffn", options.drop_ffn);
  const auto add_layers = [&](const char* key, const std::vector<int64_t>& layers) {
    if (!layers.empty()) {
      facts.set(key, node_list(layers));
    }
  };
  add_layers("drop_attention_layers", options.drop_attention_layers);
  add_layers("drop_ffn_layers", options.drop_ffn_layers);
  add_layers("layers", options.layers.value_or(std::vector<int64_t>{}));
  if (options.average_kv) {
    facts.set("average_kv", Node(true));
  }
  return facts;
}
}  // namespace

bool needs_scores(const PruneOptions& options) {
  return way_of(options) == By::score && chooses(options);
}

std::vector<int64_t> best_of(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int64_t i) { return values[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::isnan(value(b)) ? !std::isnan(value(a)) : value(a) > value(b);
  });
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

Pruning choose(const PruneOptions& options, const std::vector<BlockConfig>& blocks, const Scores* scores) {
  require(!blocks.empty(), "pruning: the model's family does not describe its layers");
  require(
      options.ffn_width || options.kv_heads || options.experts || options.expert_width || options.shared_expert_width ||
          options.drop_attention != 0 || options.drop_ffn != 0 || !options.drop_attention_layers.empty() ||
          !options.drop_ffn_layers.empty(),
      "pruning: nothing to do; set a size (--ffn-width, --kv-heads, --experts, --expert-width, --shared-expert-width), "
      "or sub-blocks to remove (--drop-attention, --drop-ffn)");
  require(!options.average_kv || options.kv_heads, "--average-kv: needs --kv-heads, the number of averaged heads");
  require(
      !options.scale_pruned_weights || options.ffn_width || options.expert_width || options.shared_expert_width,
      "--scale-pruned-weights: needs --ffn-width, --expert-width or --shared-expert-width");
  require(
      !options.by || chooses(options),
      "--by: nothing is chosen by it, as layers are named or KV heads averaged; remove the option");
  if (scores != nullptr && needs_scores(options)) {
    require_same_model(*scores, blocks.size());
  }
  Pruning pruning = Chooser(options, blocks, scores).run();
  pruning.facts = facts_of(options, scores);
  child_blocks(pruning, blocks, "");
  return pruning;
}

}  // namespace lehr::prune

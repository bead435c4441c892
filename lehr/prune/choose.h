// Choice of the parts that a pruned model keeps: by score, at random, or the first ones.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/prune/pruning.h"
#include "lehr/prune/scores.h"

namespace lehr::prune {

/// The criterion by which parts are kept.
enum class By {
  score,   ///< The highest scores.
  random,  ///< Random, by a seed: a control. The same for the same seed, layer and kind on every machine.
  first,   ///< The lowest indices.
};

/// The size of each kind after pruning; unset: unchanged. Sizes apply to all layers that have the kind.
struct PruneOptions {
  std::optional<int64_t> ffn_width;            ///< Inner channels of feed-forward blocks.
  std::optional<int64_t> kv_heads;             ///< KV heads; must divide the number in a layer.
  std::optional<int64_t> experts;              ///< Experts of an MoE layer.
  std::optional<int64_t> expert_width;         ///< Inner channels of each expert.
  std::optional<int64_t> shared_expert_width;  ///< Inner channels of the shared expert.
  int64_t drop_attention = 0;                  ///< Number of attention sub-blocks to remove, lowest score first.
  int64_t drop_ffn = 0;  ///< Number of feed-forward or MoE sub-blocks to remove, lowest score first.
  /// Layers whose attention is removed, regardless of scores and of `layers`.
  std::vector<int64_t> drop_attention_layers = {};
  std::vector<int64_t> drop_ffn_layers = {};
  /// Layers that sizes apply to, and that drop_attention and drop_ffn choose from; unset: all.
  std::optional<std::vector<int64_t>> layers = {};
  std::optional<By> by = {};  ///< Unset: by score.
  uint64_t seed = 0;          ///< Seed of By::random.
  /// Make KV heads the means of neighbouring heads, regardless of scores: the mean pooling of GQA
  /// (https://arxiv.org/abs/2305.13245).
  bool average_kv = false;
  bool scale_pruned_weights = false;  ///< See Pruning.
};

/// Returns whether these options need scores.
bool needs_scores(const PruneOptions& options);

/// Returns the indices of the `count` highest values, ascending. NaN ranks lowest; on ties the first ones are kept.
std::vector<int64_t> best_of(const std::vector<double>& values, int64_t count);

/// Chooses the parts to keep, layer by layer. Removed sub-blocks have no other sizes. Throws usage errors that name
/// layer and option: nothing to do; a size above the layer's, or of a kind that no layer has; `by` if nothing is chosen
/// by it; scores that are missing, or made for a model of another shape or number of layers; and errors of
/// child_blocks.
Pruning choose(
    const PruneOptions& options, const std::vector<descriptor::BlockConfig>& blocks, const Scores* scores = nullptr);

}  // namespace lehr::prune

// Which parts of a model to keep: the best by their scores, random ones, or the first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/prune/pruning.h"
#include "lehr/prune/scores.h"

namespace lehr::prune {

/// What decides which parts stay.
enum class By {
  score,   ///< The highest scores.
  random,  ///< Chance, by a seed: a control. The same for the same seed, layer and kind on every machine.
  first,   ///< The lowest numbers.
};

/// The size of each kind after pruning; not given: as it is. Sizes hold for all layers that have the kind.
struct PruneOptions {
  std::optional<int64_t> ffn_width;     ///< Inner channels of feed-forward blocks.
  std::optional<int64_t> kv_heads;      ///< KV heads; divides the number that a layer has.
  std::optional<int64_t> experts;       ///< Experts of a mixture.
  std::optional<int64_t> expert_width;  ///< Inner channels of each expert.
  int64_t drop_attention = 0;           ///< So many attentions of the whole model are left out, the worst first.
  int64_t drop_ffn = 0;                 ///< The same for feed-forward blocks and mixtures.
  /// Layers that lose their attention, whatever the scores, and whatever `layers` says.
  std::vector<int64_t> drop_attention_layers = {};
  std::vector<int64_t> drop_ffn_layers = {};
  /// Layers that sizes hold for, and that drop_attention and drop_ffn choose from; none: all.
  std::optional<std::vector<int64_t>> layers = {};
  std::optional<By> by = {};  ///< Not given: scores.
  uint64_t seed = 0;          ///< Of By::random.
  bool average_kv = false;    ///< KV heads that stay are the means of neighbours, whatever the scores.
  bool scale_pruned_weights = false;
};

/// Whether `scores` are needed for these options.
bool needs_scores(const PruneOptions& options);

/// The numbers of the `count` highest values, ascending. NaN is lower than all others; of equal ones the first stay.
std::vector<int64_t> best_of(const std::vector<double>& values, int64_t count);

/// Chooses, layer by layer. Halves that are dropped have no other sizes. Throws usage errors that name layer and
/// option: nothing to do; sizes that a layer is below already, or that no layer has; `by` where nothing is chosen by
/// it; scores that are missing, or made for a model of another shape or another number of layers; and as child_blocks.
Pruning choose(
    const PruneOptions& options, const std::vector<descriptor::BlockConfig>& blocks, const Scores* scores = nullptr);

}  // namespace lehr::prune

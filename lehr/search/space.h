// The alternatives of each sub-block of a trained model, from which a search chooses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/descriptor/block_config.h"
#include "lehr/pretrained/replacements.h"
#include "lehr/prune/pruning.h"
#include "lehr/prune/scores.h"

namespace lehr::search {

/// The section [space]: the sizes that each layer may get. A size that a layer has already, or that is larger, is left
/// out there; an empty list of another kind means sizes derived from the layer's own.
struct SpaceConfig {
  std::vector<int64_t> kv_heads = {};
  std::vector<int64_t> windows = {};  ///< Sliding windows; empty: only a layer's own.
  std::vector<int64_t> ffn_widths = {};
  std::vector<int64_t> experts = {};
  std::vector<int64_t> expert_widths = {};
  std::vector<int64_t> experts_per_token = {};     ///< Empty: only a layer's own.
  std::vector<int64_t> shared_expert_widths = {};  ///< Empty: only a layer's own.
  bool attention_linear = true;
  bool ffn_linear = true;
  bool attention_no_op = true;
  bool ffn_no_op = true;
  bool sizes = true;                        ///< False: only no-ops, no linear layers either.
  bool fewer_experts = true;                ///< Not a key: false for routers with groups of experts.
  std::vector<int64_t> model_windows = {};  ///< Not a key: the windows of the layers by the model's keys, as in
                                            ///< DecoderForm::windows.
  void fields(FieldVisitor& v);
  /// Checks rules across fields; keys are full ("space.kv_heads").
  void check(Problems& problems) const;
};

/// One alternative of a sub-block.
struct Variant {
  /// "teacher", "kv_heads 1", "kv_heads 1, window 64", "ffn_width 96", "experts 4, expert_width 32", "linear", "no-op".
  std::string name;
  prune::LayerKeeps keeps;        ///< Its parts of the teacher's sub-block; all for the teacher's own.
  descriptor::BlockConfig block;  ///< The teacher's layer with this sub-block.
  bool is_no_op = false;
};

/// The alternatives of a layer. The first of each is the teacher's own sub-block; if that is a no-op, it is the only
/// one.
struct LayerSpace {
  std::vector<Variant> attention;
  std::vector<Variant> ffn;

  const std::vector<Variant>& of(pretrained::Subblock subblock) const {
    return subblock == pretrained::Subblock::attention ? attention : ffn;
  }
};

/// The alternatives of all layers.
using SearchSpace = std::vector<LayerSpace>;

/// One variant in a space.
struct Place {
  int64_t layer = 0;
  pretrained::Subblock subblock = pretrained::Subblock::attention;
  size_t variant = 0;
  bool operator==(const Place&) const = default;
};

/// Returns the variant at a place.
const Variant& at(const SearchSpace& space, const Place& place);

/// Returns all variants, layer by layer, attention first.
std::vector<Place> all_variants(const SearchSpace& space);
/// Returns all variants but the teacher's own, in the same order.
std::vector<Place> alternatives(const SearchSpace& space);

/// Returns "layer 3 attention: kv_heads 1".
std::string describe(const SearchSpace& space, const Place& place);

/// A choice of one variant per sub-block: indices into LayerSpace, per layer.
struct Choice {
  std::vector<size_t> attention;
  std::vector<size_t> ffn;

  size_t& of(const Place& place);
  size_t of(int64_t layer, pretrained::Subblock subblock) const;
  bool operator==(const Choice&) const = default;
};

/// The choice of the teacher itself.
Choice teacher_choice(const SearchSpace& space);

/// Returns the parts of the teacher that the chosen child keeps.
prune::Pruning pruning_of(const SearchSpace& space, const Choice& choice);

/// Returns the layers of the chosen child.
std::vector<descriptor::BlockConfig> blocks_of(const SearchSpace& space, const Choice& choice);

/// Builds the space of a teacher with these layers. The parts that a smaller variant keeps are those with the highest
/// scores, so each variant's parts are among those of the next larger one. Throws a usage error that names the key for
/// a size that no layer can have, and for scores that a variant needs and that are missing.
SearchSpace make_space(
    const SpaceConfig& config, const std::vector<descriptor::BlockConfig>& teacher, const prune::Scores& scores);

/// Scores by which every part is as important as any other, for a space of which only the sizes matter.
prune::Scores equal_scores(const std::vector<descriptor::BlockConfig>& teacher);

/// The kinds of scores that make_space needs for these layers.
std::vector<prune::Kind> needed_scores(const SpaceConfig& config, const std::vector<descriptor::BlockConfig>& teacher);

}  // namespace lehr::search

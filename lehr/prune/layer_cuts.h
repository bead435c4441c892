// The change that pruning a layer makes to each of its parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/block_config.h"
#include "lehr/nn/attention.h"
#include "lehr/prune/parameter_cut.h"
#include "lehr/prune/pruning.h"

namespace lehr::prune {

/// Returns the parent's query groups in the order of the child, where `kept` of `num_heads` KV heads are kept. A KV
/// head serves consecutive groups: first its own, then groups whose KV head was removed (in the order of puzzletron's
/// PruneKVHeads): with 4 heads of which {1, 2} are kept, {1, 0, 2, 3}. `kept` is ascending, and num_heads a multiple of
/// its size.
std::vector<int64_t> query_groups(const std::vector<int64_t>& kept, int64_t num_heads);

/// Rules of a cut, in addition to the kept parts.
struct CutRules {
  bool scale_pruned_weights = false;  ///< PruneOptions::scale_pruned_weights.
  nn::QKNormWidth qk_norm_width = nn::QKNormWidth::head;
};

/// Returns the cut of the parameter `name` of a layer ("self_attn.q_proj.weight", relative to the layer); nothing if it
/// is unchanged. `shape` is the parent's, `block` the parent's layer.
///
/// - gate_proj and up_proj lose the rows of removed channels, down_proj the columns.
/// - k_proj and v_proj lose the rows of removed KV heads. All query heads are kept: those whose KV head was removed are
///   assigned to others, and their columns of o_proj are zero. So the layer computes the parent's output without the
///   contribution of these groups, and training starts from there. o_proj's bias and the norms of query and key heads,
///   which all heads share, are unchanged. Norms over the full width lose and reorder the elements of heads with them;
///   there the statistic of the keys is over the heads that are left, so the output differs a little more.
/// - The router loses the rows of removed experts, and its bias the elements.
///
/// Throws a usage error for an unknown parameter of a pruned sub-block.
std::optional<ParameterCut> cut_of(
    const std::string& name,
    const std::vector<int64_t>& shape,
    const LayerKeeps& keeps,
    const descriptor::BlockConfig& block,
    const CutRules& rules);

}  // namespace lehr::prune

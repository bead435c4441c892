// What pruning a layer does to each of its parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/block_config.h"
#include "lehr/prune/parameter_cut.h"
#include "lehr/prune/pruning.h"

namespace lehr::prune {

/// The parent's query groups in the order of the child, where `kept` of `num_heads` KV heads stay. A KV head serves a
/// stretch of groups: first its own, then such whose KV head is gone (as puzzletron's PruneKVHeads orders them): with
/// 4 heads of which {1, 2} stay, {1, 0, 2, 3}. `kept` is ascending, and num_heads a multiple of its size.
std::vector<int64_t> query_groups(const std::vector<int64_t>& kept, int64_t num_heads);

/// How the parameter `name` of a layer ("self_attn.q_proj.weight", named as below the layer) becomes the child's;
/// nothing if it stays as it is. `shape` is the parent's, `block` the parent's layer.
///
/// - Gates and ups lose the rows of channels, downs the columns.
/// - Keys and values lose the rows of KV heads. Query heads all stay: those whose KV head is gone are given to others,
///   and their columns of o_proj are zeros. So the layer computes what the parent's does without the part of the groups
///   that lost their KV head, and what they do instead is learned from there. o_proj's bias and the norms of queries
///   and keys, which are the same for all heads, stay.
/// - The router loses the rows of experts, and its bias the elements.
///
/// Throws a usage error for a parameter of a cut half that it does not know.
std::optional<ParameterCut> cut_of(
    const std::string& name,
    const std::vector<int64_t>& shape,
    const LayerKeeps& keeps,
    const descriptor::BlockConfig& block,
    bool scale_pruned_weights);

}  // namespace lehr::prune

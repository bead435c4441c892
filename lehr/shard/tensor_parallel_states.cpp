// Tensor parallelism of linear attention: heads with their states are sharded over the ranks.
#include "lehr/shard/tensor_parallel.h"

namespace lehr::shard {

namespace {
using mesh::DistributedContext;

// Shards the rows of the module's own parameters, not of its children's.
void shard_rows(nn::Module& module, DistributedContext& context) {
  const int64_t ranks = context.size(mesh::axis::tp);
  if (ranks == 1) {
    return;
  }
  for (const auto& parameter : module.own_parameters()) {
    parameter->lay_out(mesh::axis::tp, Placement::shard(0), context.index(mesh::axis::tp), ranks);
  }
}
}  // namespace

void tensor_parallel(nn::GatedDeltaNetImpl& block, DistributedContext& context) {
  require_divisible("linear_num_key_heads", block.num_key_heads(), context);
  gather_sequence(block, context);
  column_parallel(*block.in_proj_qkvz, context);
  column_parallel(*block.in_proj_ba, context);
  shard_rows(*block.conv1d, context);
  shard_rows(block, context);
  on_parts(*block.norm, context);
  row_parallel(*block.out_proj, context);
}

void tensor_parallel(nn::Mamba2Impl& block, DistributedContext& context) {
  require_divisible("n_groups", block.num_groups(), context);
  gather_sequence(block, context);
  column_parallel(*block.in_proj, context);
  shard_rows(*block.conv1d, context);
  shard_rows(block, context);
  shard_rows(*block.norm, context);
  row_parallel(*block.out_proj, context);
}

}  // namespace lehr::shard

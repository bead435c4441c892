#include "lehr/shard/expert_parallel.h"

#include "lehr/base/error.h"
#include "lehr/shard/expert_dispatch.h"

namespace lehr::shard {

void parallelize_experts(mesh::DistributedContext& context, nn::MoELayerImpl& layer, int64_t parts) {
  if (!context.is_distributed()) {
    return;
  }
  const int64_t ranks = context.size(mesh::axis::ep);
  const int64_t experts = layer.num_experts();
  require(
      experts % ranks == 0,
      "parallelism.expert_parallel_degree: num_experts ({}) must be a multiple of it, found {}",
      experts,
      ranks);
  require(
      ranks == 1 || (parts >= 1 && (experts / ranks) % parts == 0),
      "parallelism.expert_parallel_parts: the experts of a rank ({}) must be a multiple of it, found {}",
      experts / ranks,
      parts);
  for (const auto& [name, parameter] : nn::named_parameters(*layer.grouped_experts)) {
    require(
        parameter->shape().front() == experts,
        "expert parallelism: parameter {} of the experts: expected {} experts in its first dimension, found {}",
        name,
        experts,
        parameter->shape().front());
    parameter->lay_out(mesh::axis::ep, Placement::shard(0), context.index(mesh::axis::ep), ranks);
  }
  if (ranks > 1) {
    layer.set_dispatcher(expert_dispatcher(context.group(mesh::axis::ep), parts));
  }
}

void share_router_losses(mesh::DistributedContext& context, nn::RouterLosses& losses) {
  const mesh::Group& group = context.group({mesh::axis::cp, mesh::axis::tp});
  if (group.size() == 1) {
    return;
  }
  losses.set_sum_over_ranks([&group](const at::Tensor& mine) {
    at::Tensor sum = mine.clone();
    group.all_reduce(sum);
    return sum;
  });
}

at::Tensor reduce_expert_loads(mesh::DistributedContext& context, torch::nn::Module& root) {
  const mesh::Group& group =
      context.group({mesh::axis::dp_replicate, mesh::axis::dp_shard, mesh::axis::cp, mesh::axis::tp});
  at::Tensor loads = nn::moe_tokens_per_expert(root);
  if (loads.defined()) {
    group.all_reduce(loads);  // not the layers' own counts, but a copy
  }
  return loads;
}

}  // namespace lehr::shard

#include "lehr/shard/expert_parallel.h"

#include <numeric>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/memory/async_copy.h"
#include "lehr/mesh/collectives.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/nn/expert_parts.h"
#include "lehr/shard/async_all_to_all.h"
#include "lehr/shard/parted_dispatch.h"

namespace lehr::shard {

namespace {
// Number of rows that a rank sends to and receives from each rank, and the order of the received rows.
struct Route {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
  ops::TokenPermutation arrival;  // from (source rank, expert) to (expert, source rank)
};

// The result of plan_route on meta: each rank sends and receives the same share of `copies`.
Route even_route(const at::Tensor& counts, int64_t copies, const mesh::Group& group) {
  const int64_t ranks = group.size();
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sizes.push_back(copies * (rank + 1) / ranks - copies * rank / ranks);
  }
  const at::Tensor expert_of_row = at::empty({copies, 1}, counts.options());
  return {.sent = sizes, .received = sizes, .arrival = ops::sort_by_expert(expert_of_row, counts.size(0) / ranks)};
}

// The counts that ranks exchange before the all-to-all of tokens.
struct Counts {
  at::Tensor arriving;  // (E), by source rank and local expert
  AsyncCopy by_rank;    // (2, ranks): sent, received; the copy to the host is asynchronous
};

// `counts` (E) are the numbers of this rank's token copies by global expert.
Counts exchange_counts(const at::Tensor& counts, const mesh::Group& group) {
  const int64_t ranks = group.size();
  const int64_t experts = counts.size(0) / ranks;  // per rank
  const at::Tensor arriving = at::empty_like(counts);
  const std::vector<int64_t> even(static_cast<size_t>(ranks), experts);
  group.all_to_all(arriving, counts, even, even);
  return {.arriving = arriving, .by_rank = AsyncCopy(at::stack({counts, arriving}).view({2, ranks, experts}).sum(-1))};
}

// Plans the all-to-all of this rank's `copies`. Waits for the counts by rank, since c10d and NCCL take the sizes of an
// all_to_all as host numbers. That is one host sync per layer, and a short one: the copy into pinned memory follows the
// sums directly in the device's queue, and the work that was enqueued after it keeps the device busy.
Route plan_route(const at::Tensor& counts, const Counts& exchanged, int64_t copies, const mesh::Group& group) {
  if (runs_on_meta(counts)) {
    return even_route(counts, copies, group);
  }
  const int64_t ranks = group.size();
  const int64_t experts = counts.size(0) / ranks;
  const at::Tensor& arriving = exchanged.arriving;
  const auto* sums = exchanged.by_rank.wait().const_data_ptr<int64_t>();
  Route route{.sent = {sums, sums + ranks}, .received = {sums + ranks, sums + 2 * ranks}, .arrival = {}};
  const int64_t total = std::accumulate(route.received.begin(), route.received.end(), int64_t{0});
  // For each row, the index of its count in `arriving`; the optional selects the overload that takes a total.
  const at::Tensor place_of_row = at::repeat_interleave(arriving, std::optional<int64_t>(total));  // (M)
  const at::Tensor expert_of_row = place_of_row.remainder(experts);
  route.arrival = ops::sort_by_expert(expert_of_row.unsqueeze(1), experts);
  return route;
}

class Dispatch : public nn::ExpertDispatch {
 public:
  Dispatch(const at::Tensor& tokens, const ops::TokenPermutation& permutation, const mesh::Group& group)
      : group_(group),
        permutation_(permutation),
        counts_(exchange_counts(permutation.counts, group)),
        leaving_(ops::permute_tokens(tokens, permutation)),  // the device's work while the host waits
        route_(plan_route(permutation.counts, counts_, permutation.order.size(0), group)),
        rows_(std::exchange(leaving_, at::Tensor()), group, route_.received, route_.sent) {}

  at::Tensor run(const nn::GroupedExperts& experts, const at::Tensor& probabilities) override {
    const at::Tensor results = experts(ops::permute_tokens(rows_.wait(), route_.arrival), route_.arrival.ends);
    const at::Tensor leaving = ops::unpermute_rows(results, route_.arrival);  // (M, H), in the order of arrival
    const at::Tensor back = mesh::all_to_all(leaving, group_, route_.sent, route_.received);
    return ops::combine_tokens(back, probabilities.to(back.scalar_type()), permutation_);
  }

 private:
  const mesh::Group& group_;
  ops::TokenPermutation permutation_;  // of this rank's N tokens, by global expert
  Counts counts_;
  at::Tensor leaving_;  // (N * k, H), by global expert; moved into rows_
  Route route_;
  AsyncAllToAll rows_;  // (M, H), by source rank, then by local expert
};

// Dispatch under an operator watch: each rank is assumed to receive as many rows as it sends.
class StatedDispatch : public nn::ExpertDispatch {
 public:
  StatedDispatch(
      OperatorWatch& watch,
      const at::Tensor& tokens,
      const ops::TokenPermutation& permutation,
      const mesh::Group& group)
      : watch_(watch),
        group_(group),
        rows_(state("expert_dispatch", {{"tokens", tokens}}, {permutation.order.size(0), tokens.size(1)}, tokens)),
        ends_(at::empty({permutation.ends.size(0) / group.size()}, permutation.ends.options())) {}

  at::Tensor run(const nn::GroupedExperts& experts, const at::Tensor& probabilities) override {
    const at::Tensor results = experts(rows_, ends_);
    const at::Tensor weights = probabilities.to(results.scalar_type());
    return state(
        "expert_combine",
        {{"results", results, Placement::shard(0)}, {"weights", weights}},
        {weights.size(0), results.size(1)},
        results);
  }

 private:
  at::Tensor state(
      const char* name, std::vector<StatedInput> inputs, std::vector<int64_t> shape, const at::Tensor& like) {
    return watch_.state(
        {.name = name,
         .ranks = group_.ranks(),
         .inputs = std::move(inputs),
         .shape = std::move(shape),
         .dtype = like.scalar_type()});
  }

  OperatorWatch& watch_;
  const mesh::Group& group_;
  at::Tensor rows_;
  at::Tensor ends_;
};

class Dispatcher : public nn::ExpertDispatcher {
 public:
  Dispatcher(const mesh::Group& group, int64_t parts)
      : group_(group), parts_(parts > 1 ? parted_dispatcher(group, parts) : nullptr) {}

  ops::TokenPermutation sort(const at::Tensor& selected_experts, int64_t num_experts) const override {
    return parts_ && operator_watch() == nullptr ? parts_->sort(selected_experts, num_experts)
                                                 : ExpertDispatcher::sort(selected_experts, num_experts);
  }
  std::unique_ptr<nn::ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const override {
    if (OperatorWatch* watch = operator_watch()) {
      return std::make_unique<StatedDispatch>(*watch, tokens, permutation, group_);
    }
    return parts_ ? parts_->start(tokens, permutation) : std::make_unique<Dispatch>(tokens, permutation, group_);
  }

 private:
  const mesh::Group& group_;
  std::shared_ptr<const nn::ExpertDispatcher> parts_;  // null for one part
};
}  // namespace

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
      parts >= 1 && (experts / ranks) % parts == 0,
      "parallelism.expert_parallel_parts: the experts of a rank ({}) must be a multiple of it, found {}",
      experts / ranks,
      parts);
  if (parts > 1 && ranks > 1) {
    nn::require_parts(layer.grouped_experts);
  }
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
    layer.set_dispatcher(std::make_shared<Dispatcher>(context.group(mesh::axis::ep), parts));
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

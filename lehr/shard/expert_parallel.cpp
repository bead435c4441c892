#include "lehr/shard/expert_parallel.h"

#include <numeric>

#include "lehr/base/error.h"
#include "lehr/base/on_meta.h"
#include "lehr/base/operator_watch.h"
#include "lehr/mesh/collectives.h"
#include "lehr/shard/travelling_rows.h"

namespace lehr::shard {

namespace {
// How many rows a rank sends to each rank and gets from it, and where those that it gets belong.
struct Route {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
  ops::TokenPermutation arrival;  // from (source rank, expert) to (expert, source rank)
};

// What plan_route gives on meta: of `copies`, each rank sends and gets as many as any other.
Route even_route(const at::Tensor& counts, int64_t copies, const mesh::Group& group) {
  const int64_t ranks = group.size();
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sizes.push_back(copies * (rank + 1) / ranks - copies * rank / ranks);
  }
  const at::Tensor expert_of_row = at::empty({copies, 1}, counts.options());
  return {.sent = sizes, .received = sizes, .arrival = ops::sort_by_expert(expert_of_row, counts.size(0) / ranks)};
}

// `counts` (E) are this rank's copies by global expert, `copies` of them.
Route plan_route(const at::Tensor& counts, int64_t copies, const mesh::Group& group) {
  const int64_t ranks = group.size();
  const int64_t experts = counts.size(0) / ranks;      // on a rank
  const at::Tensor arriving = at::empty_like(counts);  // by source rank and local expert
  const std::vector<int64_t> even(static_cast<size_t>(ranks), experts);
  group.all_to_all(arriving, counts, even, even);
  if (runs_on_meta(counts)) {
    return even_route(counts, copies, group);
  }
  const at::Tensor on_host = at::stack({counts, arriving}).view({2, ranks, experts}).sum(-1).cpu();
  const auto* sums = on_host.const_data_ptr<int64_t>();
  Route route{.sent = {sums, sums + ranks}, .received = {sums + ranks, sums + 2 * ranks}, .arrival = {}};
  const int64_t total = std::accumulate(route.received.begin(), route.received.end(), int64_t{0});
  // The place in `arriving` of each row's count; the optional picks the overload that takes a total.
  const at::Tensor place_of_row = at::repeat_interleave(arriving, std::optional<int64_t>(total));
  const at::Tensor expert_of_row = place_of_row.remainder(experts);
  route.arrival = ops::sort_by_expert(expert_of_row.unsqueeze(1), experts);
  return route;
}

class Dispatch : public nn::ExpertDispatch {
 public:
  Dispatch(const at::Tensor& tokens, const ops::TokenPermutation& permutation, const mesh::Group& group)
      : group_(group),
        permutation_(permutation),
        route_(plan_route(permutation.counts, permutation.order.size(0), group)),
        rows_(ops::permute_tokens(tokens, permutation), group, route_.received, route_.sent) {}

  nn::ExpertRows receive() override {
    return {.rows = ops::permute_tokens(rows_.wait(), route_.arrival), .ends = route_.arrival.ends};
  }

  at::Tensor combine(const at::Tensor& results, const at::Tensor& weights) override {
    const at::Tensor leaving = ops::unpermute_rows(results, route_.arrival);
    return ops::combine_tokens(mesh::all_to_all(leaving, group_, route_.sent, route_.received), weights, permutation_);
  }

 private:
  const mesh::Group& group_;
  ops::TokenPermutation permutation_;
  Route route_;
  TravellingRows rows_;
};

// The same for a watch: what arrives is as if each rank kept its number of rows.
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

  nn::ExpertRows receive() override { return {.rows = rows_, .ends = ends_}; }
  at::Tensor combine(const at::Tensor& results, const at::Tensor& weights) override {
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
  explicit Dispatcher(const mesh::Group& group) : group_(group) {}
  std::unique_ptr<nn::ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const override {
    if (OperatorWatch* watch = operator_watch()) {
      return std::make_unique<StatedDispatch>(*watch, tokens, permutation, group_);
    }
    return std::make_unique<Dispatch>(tokens, permutation, group_);
  }

 private:
  const mesh::Group& group_;
};
}  // namespace

void parallelize_experts(mesh::DistributedContext& context, nn::MoELayerImpl& layer) {
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
    layer.set_dispatcher(std::make_shared<Dispatcher>(context.group(mesh::axis::ep)));
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
    group.all_reduce(loads);  // a copy of the layers' counts
  }
  return loads;
}

}  // namespace lehr::shard

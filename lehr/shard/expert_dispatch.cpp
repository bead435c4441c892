#include "lehr/shard/expert_dispatch.h"

#include <utility>

#include "lehr/memory/async_copy.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/nn/experts.h"
#include "lehr/shard/expert_all_to_all.h"

namespace lehr::shard {

namespace {
// E experts over all ranks, numbered by (rank, part, expert of the part).
struct Shape {
  int64_t parts, ranks, experts;  // experts: of one part on one rank
  int64_t all() const { return parts * ranks * experts; }
};

// The rows that this rank sends and receives.
struct Routes {
  std::vector<PartSizes> sizes;                 // by part
  std::vector<ops::TokenPermutation> arrivals;  // by part: from (source rank, expert) to (expert, source rank)
};

int64_t share_of(int64_t rows, int64_t index, int64_t count) {
  return rows * (index + 1) / count - rows * index / count;
}

// On meta: the copies are spread evenly over parts and ranks.
Routes even_routes(const Shape& shape, int64_t copies, const at::TensorOptions& options) {
  Routes routes;
  for (int64_t part = 0; part < shape.parts; ++part) {
    const int64_t rows = share_of(copies, part, shape.parts);
    std::vector<int64_t> sizes;
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      sizes.push_back(share_of(rows, rank, shape.ranks));
    }
    routes.sizes.push_back({.sent = sizes, .received = sizes});
    routes.arrivals.push_back(ops::sort_by_expert(at::empty({rows, 1}, options), shape.experts));
  }
  return routes;
}

// The counts that ranks exchange before the tokens.
struct Counts {
  at::Tensor arriving;  // (ranks, parts, experts)
  AsyncCopy sums;       // (2, ranks, parts): sent, received; the copy to the host is asynchronous
};

// `counts` (E) are those of this rank's token copies.
Counts exchange_counts(const at::Tensor& counts, const Shape& shape, const mesh::Group& group) {
  const at::Tensor arriving = at::empty_like(counts);
  const std::vector<int64_t> even(static_cast<size_t>(shape.ranks), counts.size(0) / shape.ranks);
  group.all_to_all(arriving, counts, even, even);
  const std::vector<int64_t> sizes{shape.ranks, shape.parts, shape.experts};
  return {
      .arriving = arriving.view(sizes),
      .sums = AsyncCopy(at::stack({counts.view(sizes), arriving.view(sizes)}).sum(-1))};
}

// Waits for the sums, since c10d and NCCL take the sizes of an all-to-all as host numbers. That is one host sync per
// layer, and a short one: the copy into pinned memory follows the sums directly in the device's queue, and the work
// that was enqueued after it keeps the device busy.
Routes routes_of(const Shape& shape, const Counts& counts, int64_t copies) {
  if (runs_on_meta(counts.arriving)) {
    return even_routes(shape, copies, counts.arriving.options());
  }
  const auto* sums = counts.sums.wait().const_data_ptr<int64_t>();
  Routes routes;
  for (int64_t part = 0; part < shape.parts; ++part) {
    PartSizes sizes;
    int64_t rows = 0;
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      sizes.sent.push_back(sums[rank * shape.parts + part]);
      sizes.received.push_back(sums[(shape.ranks + rank) * shape.parts + part]);
      rows += sizes.received.back();
    }
    const at::Tensor arriving = counts.arriving.select(1, part).flatten();  // by (source rank, expert)
    const at::Tensor place_of_row = at::repeat_interleave(arriving, std::optional<int64_t>(rows));
    routes.arrivals.push_back(ops::sort_by_expert(place_of_row.remainder(shape.experts).unsqueeze(1), shape.experts));
    routes.sizes.push_back(std::move(sizes));
  }
  return routes;
}

class Dispatch : public nn::ExpertDispatch {
 public:
  Dispatch(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation, const Shape& shape, const mesh::Group& group)
      : group_(group),
        shape_(shape),
        permutation_(permutation),
        counts_(exchange_counts(permutation.counts, shape, group)),
        leaving_(ops::permute_tokens(tokens, permutation)),  // the device's work while the host waits
        routes_(routes_of(shape, counts_, permutation.order.size(0))),
        rows_(std::exchange(leaving_, at::Tensor()), group, routes_.sizes) {}

  // The weights' nodes come before those that wait for rows: autograd then computes the weights' gradients last.
  at::Tensor run(const nn::GroupedExperts& experts, const at::Tensor& probabilities) override {
    const bool parted = shape_.parts > 1;
    const nn::ExpertWeights weights = parted ? experts->weights() : nn::ExpertWeights();
    CombineAllToAll back(group_, routes_.sizes);
    for (size_t part = 0; part < routes_.arrivals.size(); ++part) {
      const ops::TokenPermutation& arrival = routes_.arrivals[part];
      const nn::ExpertPart here{
          .weights = parted ? &weights : nullptr, .first = static_cast<int64_t>(part) * shape_.experts};
      const at::Tensor results = experts(ops::permute_tokens(rows_.wait(part), arrival), arrival.ends, here);
      back.send(part, ops::unpermute_rows(results, arrival));
    }
    const at::Tensor results = back.wait();
    return ops::combine_tokens(results, probabilities.to(results.scalar_type()), permutation_);
  }

 private:
  const mesh::Group& group_;
  Shape shape_;
  ops::TokenPermutation permutation_;  // of this rank's N tokens, by (part, rank, expert)
  Counts counts_;
  at::Tensor leaving_;  // (N * k, H), in this order; moved into rows_
  Routes routes_;
  DispatchAllToAll rows_;
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
  Dispatcher(const mesh::Group& group, int64_t parts) : group_(group), parts_(parts) {}

  ops::TokenPermutation sort(const at::Tensor& selected_experts, int64_t num_experts) const override {
    if (parts_ == 1 || operator_watch() != nullptr) {
      return ExpertDispatcher::sort(selected_experts, num_experts);
    }
    const Shape shape = shape_of(num_experts);
    // The place of each expert in the order of (part, rank, expert).
    const at::Tensor places = at::arange(shape.all(), selected_experts.options())
                                  .view({shape.parts, shape.ranks, shape.experts})
                                  .transpose(0, 1)
                                  .flatten();
    const at::Tensor selected = places.index_select(0, selected_experts.flatten()).view_as(selected_experts);
    ops::TokenPermutation permutation = ops::sort_by_expert(selected, num_experts);
    permutation.counts = permutation.counts.index_select(0, places);
    return permutation;
  }

  std::unique_ptr<nn::ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const override {
    if (OperatorWatch* watch = operator_watch()) {
      return std::make_unique<StatedDispatch>(*watch, tokens, permutation, group_);
    }
    return std::make_unique<Dispatch>(tokens, permutation, shape_of(permutation.counts.size(0)), group_);
  }

 private:
  Shape shape_of(int64_t experts) const {
    return {.parts = parts_, .ranks = group_.size(), .experts = experts / group_.size() / parts_};
  }

  const mesh::Group& group_;
  int64_t parts_;
};
}  // namespace

std::shared_ptr<const nn::ExpertDispatcher> expert_dispatcher(const mesh::Group& group, int64_t parts) {
  return std::make_shared<Dispatcher>(group, parts);
}

}  // namespace lehr::shard

#include "lehr/mesh/collectives.h"

#include <numeric>

#include "lehr/base/autograd_function.h"
#include "lehr/base/error.h"
#include "lehr/meter/operator_watch.h"

namespace lehr::mesh {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Kind { all_gather, reduce_scatter, all_reduce, identity, take_shard };

Kind backward_of(Kind forward, bool invariant) {
  switch (forward) {
    case Kind::all_gather:
      return invariant ? Kind::take_shard : Kind::reduce_scatter;
    case Kind::reduce_scatter:
    case Kind::take_shard:
      return Kind::all_gather;
    case Kind::all_reduce:
      return Kind::identity;
    case Kind::identity:
      return Kind::all_reduce;
  }
  return Kind::identity;
}

at::Tensor reduced_part(const at::Tensor& input, const Group& group, int64_t dim) {
  const int64_t size = input.size(dim) / group.size();
  auto shape = input.sizes().vec();
  shape[static_cast<size_t>(dim)] = group.size();
  shape.insert(shape.begin() + dim + 1, size);
  const at::Tensor parts = input.reshape(shape).movedim(dim, 0).contiguous();
  const at::Tensor output = at::empty(parts.sizes().slice(1), parts.options());
  group.reduce_scatter(output, parts);
  return output;
}

at::Tensor run(Kind kind, const at::Tensor& input, const Group& group, int64_t dim) {
  switch (kind) {
    case Kind::all_gather:
      return StartedAllGather(input, group, dim).wait();
    case Kind::reduce_scatter:
      return reduced_part(input, group, dim);
    case Kind::all_reduce: {
      at::Tensor sum = input.clone(at::MemoryFormat::Contiguous);
      group.all_reduce(sum);
      return sum;
    }
    case Kind::identity:
      return input.view_as(input);
    case Kind::take_shard: {
      const int64_t size = input.size(dim) / group.size();
      return input.narrow(dim, group.rank() * size, size).contiguous();
    }
  }
  return input;
}

struct Collective : AutogradFunction<Collective> {
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& input, Kind kind, bool invariant, const Group* group, int64_t dim) {
    context->saved_data["backward"] = static_cast<int64_t>(backward_of(kind, invariant));
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["dim"] = dim;
    return run(kind, input, *group, dim);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto kind = static_cast<Kind>(context->saved_data["backward"].toInt());
    const auto* group = reinterpret_cast<const Group*>(context->saved_data["group"].toInt());
    return {run(kind, gradients[0], *group, context->saved_data["dim"].toInt()), {}, {}, {}, {}};
  }
};

struct AllToAll : AutogradFunction<AllToAll> {
  static at::Tensor send(
      const at::Tensor& input,
      const Group& group,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes) {
    auto shape = input.sizes().vec();
    shape[0] = 0;
    for (const int64_t size : output_sizes) {
      shape[0] += size;
    }
    const at::Tensor output = at::empty(shape, input.options());
    group.all_to_all(output, input.contiguous(), output_sizes, input_sizes);
    return output;
  }
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const Group* group,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["output_sizes"] = output_sizes;
    context->saved_data["input_sizes"] = input_sizes;
    return send(input, *group, output_sizes, input_sizes);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto* group = reinterpret_cast<const Group*>(context->saved_data["group"].toInt());
    const auto outputs = context->saved_data["output_sizes"].toIntVector();
    const auto inputs = context->saved_data["input_sizes"].toIntVector();
    return {send(gradients[0], *group, inputs, outputs), {}, {}, {}};
  }
};

// The table of collectives.h, for an operator watch.
Statement statement(
    const char* name, Kind kind, bool invariant, const at::Tensor& input, const Group& group, int64_t dim) {
  Placement takes = Placement::invariant(), gives = Placement::replicate();  // enter_replicated
  auto shape = input.sizes().vec();
  switch (kind) {
    case Kind::all_gather:
      takes = Placement::shard(dim);
      gives = invariant ? Placement::invariant() : Placement::replicate();
      shape[static_cast<size_t>(dim)] *= group.size();
      break;
    case Kind::reduce_scatter:
    case Kind::take_shard:
      takes = kind == Kind::reduce_scatter ? Placement::partial() : Placement::invariant();
      gives = Placement::shard(dim);
      shape[static_cast<size_t>(dim)] /= group.size();
      break;
    case Kind::all_reduce:
      takes = Placement::partial();
      gives = Placement::invariant();
      break;
    case Kind::identity:
      break;
  }
  return {
      .name = name,
      .ranks = group.ranks(),
      .inputs = {{"input", input, takes}},
      .gives = gives,
      .shape = std::move(shape),
      .dtype = input.scalar_type()};
}

at::Tensor collective(
    const char* name, Kind kind, bool invariant, const at::Tensor& input, const Group& group, int64_t dim) {
  if (group.size() == 1) {
    return input;
  }
  require(
      dim >= 0 && (input.dim() == 0 || dim < input.dim()),
      "{} on axis {}: dimension {} of a tensor that has {}",
      name,
      group.name(),
      dim,
      input.dim());
  require(
      (kind != Kind::reduce_scatter && kind != Kind::take_shard) || input.size(dim) % group.size() == 0,
      "{} on axis {}: dimension {} has {} elements, which is not a multiple of the {} ranks",
      name,
      group.name(),
      dim,
      input.dim() > 0 ? input.size(dim) : 0,
      group.size());
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(statement(name, kind, invariant, input, group, dim));
  }
  return Collective::apply(input, kind, invariant, &group, dim);
}
}  // namespace

at::Tensor all_gather(const at::Tensor& input, const Group& group, int64_t dim) {
  return collective("all_gather", Kind::all_gather, false, input, group, dim);
}

StartedAllGather::StartedAllGather(const at::Tensor& input, const Group& group, int64_t dim) : dim_(dim) {
  const at::Tensor part = input.contiguous();
  auto shape = part.sizes().vec();
  shape.insert(shape.begin(), group.size());
  parts_ = at::empty(shape, part.options());
  pending_ = group.start_all_gather(parts_, part);
}

// Collectives concatenate along dimension 0 only.
at::Tensor StartedAllGather::wait() {
  pending_.wait();
  return dim_ == 0 ? parts_.flatten(0, 1) : parts_.movedim(0, dim_).flatten(dim_, dim_ + 1);
}

at::Tensor reduce_scatter(const at::Tensor& input, const Group& group, int64_t dim) {
  return collective("reduce_scatter", Kind::reduce_scatter, false, input, group, dim);
}

at::Tensor all_reduce(const at::Tensor& input, const Group& group) {
  return collective("all_reduce", Kind::all_reduce, false, input, group, 0);
}

at::Tensor enter_replicated(const at::Tensor& input, const Group& group) {
  return collective("enter_replicated", Kind::identity, false, input, group, 0);
}

at::Tensor gather_invariant(const at::Tensor& input, const Group& group, int64_t dim) {
  return collective("gather_invariant", Kind::all_gather, true, input, group, dim);
}

at::Tensor take_shard(const at::Tensor& input, const Group& group, int64_t dim) {
  return collective("take_shard", Kind::take_shard, false, input, group, dim);
}

at::Tensor all_to_all(
    const at::Tensor& input,
    const Group& group,
    const std::vector<int64_t>& output_sizes,
    const std::vector<int64_t>& input_sizes) {
  if (group.size() == 1) {
    return input;
  }
  if (OperatorWatch* watch = operator_watch()) {
    auto shape = input.sizes().vec();
    shape[0] = std::accumulate(output_sizes.begin(), output_sizes.end(), int64_t{0});
    return watch->state(
        {.name = "all_to_all",
         .ranks = group.ranks(),
         .inputs = {{"input", input, Placement::varying()}},
         .gives = Placement::varying(),
         .shape = std::move(shape),
         .dtype = input.scalar_type()});
  }
  return AllToAll::apply(input, &group, output_sizes, input_sizes);
}

}  // namespace lehr::mesh

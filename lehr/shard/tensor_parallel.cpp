#include "lehr/shard/tensor_parallel.h"

#include <unordered_set>

#include "lehr/base/error.h"
#include "lehr/base/operator_watch.h"
#include "lehr/mesh/collectives.h"
#include "lehr/ops/linear.h"

namespace lehr::shard {

namespace {
using mesh::DistributedContext;
using mesh::Group;

bool is_one(const DistributedContext& context) {
  return context.size(mesh::axis::tp) == 1;
}

void lay_out(nn::Parameter& parameter, Placement placement, const DistributedContext& context) {
  parameter.lay_out(mesh::axis::tp, placement, context.index(mesh::axis::tp), context.size(mesh::axis::tp));
}

void lay_out_all(nn::Module& module, Placement placement, const DistributedContext& context) {
  for (const auto& [name, parameter] : nn::named_parameters(module)) {
    lay_out(*parameter, placement, context);
  }
}

void refuse_adapter(const nn::LinearImpl& linear) {
  require(
      !linear.adapter(),
      "peft.method: adapters are not supported with parallelism.tensor_parallel_degree above 1: one stands in a "
      "projection whose weight is split; use data parallelism instead");
}

class GatherSequence : public nn::CallHook {
 public:
  explicit GatherSequence(const Group& group) : group_(group) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    return forward(mesh::all_gather(input, group_, 1));
  }

 private:
  const Group& group_;
};

class GatherWholeSequences : public nn::CallHook {
 public:
  explicit GatherWholeSequences(const Group& group) : group_(group) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    return forward(mesh::gather_invariant(input, group_, 1));
  }

 private:
  const Group& group_;
};

// Does the layer's work itself: inside the sum over ranks the bias would count once for each of them.
class RowParallel : public nn::CallHook {
 public:
  RowParallel(const nn::LinearImpl& linear, const Group& group) : linear_(linear), group_(group) {}
  at::Tensor call(const at::Tensor& input, const Forward&) override {
    refuse_adapter(linear_);
    const at::Tensor part = ops::linear(input, linear_.weight, {});           // (B, T, H), partial
    const at::Tensor output = mesh::reduce_scatter(part, group_, /*dim=*/1);  // (B, T/tp, H)
    return linear_.bias.defined() ? output + linear_.bias : output;
  }

 private:
  const nn::LinearImpl& linear_;  // which owns the hook
  const Group& group_;
};

// Of fewer heads than ranks each rank's layer gives a part; they are joined, and each rank takes the head that its
// queries read. Seen as a type, the heads stand there once for every rank, and are shard(last); on the way back the
// gradients of those that are one head are summed.
class RepeatHeads : public nn::CallHook {
 public:
  RepeatHeads(const Group& group, int64_t heads) : group_(group), heads_(heads) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    const at::Tensor part = forward(input);  // (B, T, heads * D / ranks)
    const int64_t last = part.dim() - 1;
    const int64_t size = part.size(last) * group_.size() / heads_;
    if (OperatorWatch* watch = operator_watch()) {
      std::vector<int64_t> shape = part.sizes().vec();
      shape.back() = size;
      return watch->state(
          {.name = "repeat_heads",
           .ranks = group_.ranks(),
           .inputs = {{"heads", part, Placement::shard(last)}},
           .gives = Placement::shard(last),
           .shape = std::move(shape),
           .dtype = part.scalar_type()});
    }
    const at::Tensor all = mesh::all_gather(part, group_, last);  // (B, T, heads * D)
    const int64_t head = group_.rank() * heads_ / group_.size();
    return all.narrow(last, head * size, size).contiguous();  // (B, T, D); not a view, which would keep all of it
  }

 private:
  const Group& group_;
  int64_t heads_;
};

void repeat_heads(nn::LinearImpl& projection, int64_t heads, DistributedContext& context) {
  projection.add_call_hook(std::make_shared<RepeatHeads>(context.group(mesh::axis::tp), heads));
}

// Whether there are fewer key/value heads than ranks, which then share them.
bool shares_heads(const nn::GroupedQueryAttentionImpl& attention, const DistributedContext& context) {
  const int64_t heads = attention.num_key_value_heads(), ranks = context.size(mesh::axis::tp);
  if (heads % ranks == 0) {
    return false;
  }
  require(
      ranks % heads == 0,
      "num_key_value_heads: {} cannot be split evenly over parallelism.tensor_parallel_degree = {}; choose a degree "
      "that divides it, or a multiple of it",
      heads,
      ranks);
  const int64_t rows = attention.k_proj->own_parameter("weight")->shape()[0];
  require(
      rows % ranks == 0,
      "num_key_value_heads: each of {} key/value heads lies on {} ranks (parallelism.tensor_parallel_degree = {}), "
      "which does not divide its {} rows (head_dim)",
      heads,
      ranks / heads,
      ranks,
      rows / heads);
  return true;
}

template <class Gated>
void gated_feed_forward(Gated& block, DistributedContext& context) {
  require_divisible("intermediate_size", block.gate_proj->own_parameter("weight")->shape()[0], context);
  gather_sequence(block, context);
  column_parallel(*block.gate_proj, context);
  column_parallel(*block.up_proj, context);
  row_parallel(*block.down_proj, context);
}
}  // namespace

void require_divisible(const char* key, int64_t size, const DistributedContext& context) {
  const int64_t ranks = context.size(mesh::axis::tp);
  require(
      size % ranks == 0,
      "{}: {} cannot be split evenly over parallelism.tensor_parallel_degree = {}; choose a degree that divides it",
      key,
      size,
      ranks);
}

void gather_sequence(nn::Module& block, DistributedContext& context) {
  if (!is_one(context)) {
    block.add_call_hook(std::make_shared<GatherSequence>(context.group(mesh::axis::tp)));
  }
}

void column_parallel(nn::LinearImpl& linear, DistributedContext& context) {
  if (!is_one(context)) {
    refuse_adapter(linear);
    lay_out_all(linear, Placement::shard(0), context);
  }
}

void row_parallel(nn::LinearImpl& linear, DistributedContext& context) {
  if (is_one(context)) {
    return;
  }
  refuse_adapter(linear);
  lay_out(*linear.own_parameter("weight"), Placement::shard(1), context);
  if (linear.bias.defined()) {
    lay_out(*linear.own_parameter("bias"), Placement::replicate(), context);
  }
  linear.add_call_hook(std::make_shared<RowParallel>(linear, context.group(mesh::axis::tp)));
}

void on_parts(nn::Module& module, DistributedContext& context) {
  if (!is_one(context)) {
    lay_out_all(module, Placement::replicate(), context);
  }
}

void on_whole_sequences(nn::Module& module, DistributedContext& context) {
  if (!is_one(context)) {
    lay_out_all(module, Placement::invariant(), context);
    module.add_call_hook(std::make_shared<GatherWholeSequences>(context.group(mesh::axis::tp)));
  }
}

void tensor_parallel(nn::GroupedQueryAttentionImpl& attention, DistributedContext& context) {
  require_divisible("num_attention_heads", attention.num_attention_heads(), context);
  const bool shared = shares_heads(attention, context);
  gather_sequence(attention, context);
  column_parallel(*attention.q_proj, context);
  column_parallel(*attention.k_proj, context);
  column_parallel(*attention.v_proj, context);
  if (shared) {
    repeat_heads(*attention.k_proj, attention.num_key_value_heads(), context);
    repeat_heads(*attention.v_proj, attention.num_key_value_heads(), context);
  }
  row_parallel(*attention.o_proj, context);
  if (attention.q_norm) {
    on_parts(*attention.q_norm, context);
    on_parts(*attention.k_norm, context);
  }
  if (attention.sinks.defined() && !is_one(context)) {
    lay_out(*attention.own_parameter("sinks"), Placement::shard(0), context);
  }
}

void tensor_parallel(nn::MultiHeadLatentAttentionImpl& attention, DistributedContext& context) {
  require_divisible("num_attention_heads", attention.num_attention_heads(), context);
  gather_sequence(attention, context);
  if (attention.q_proj) {
    column_parallel(*attention.q_proj, context);
  } else {
    on_parts(*attention.q_a_proj, context);
    on_parts(*attention.q_a_layernorm, context);
    column_parallel(*attention.q_b_proj, context);
  }
  on_parts(*attention.kv_a_proj_with_mqa, context);
  on_parts(*attention.kv_a_layernorm, context);
  column_parallel(*attention.kv_b_proj, context);
  row_parallel(*attention.o_proj, context);
}

void tensor_parallel(nn::SwiGLUImpl& block, DistributedContext& context) {
  gated_feed_forward(block, context);
}

void tensor_parallel(nn::GeGLUImpl& block, DistributedContext& context) {
  gated_feed_forward(block, context);
}

void tensor_parallel(nn::GeluMlpImpl& block, DistributedContext& context) {
  require_divisible("intermediate_size", block.fc1->own_parameter("weight")->shape()[0], context);
  gather_sequence(block, context);
  column_parallel(*block.fc1, context);
  row_parallel(*block.fc2, context);
}

void require_tensor_layouts(
    const nn::Module& root, const DistributedContext& context, const std::vector<const nn::Module*>& exempt) {
  if (is_one(context)) {
    return;
  }
  std::unordered_set<const nn::Parameter*> others;
  for (const nn::Module* module : exempt) {
    for (const auto& [name, parameter] : nn::named_parameters(*module)) {
      others.insert(parameter.get());
    }
  }
  for (const auto& [name, parameter] : nn::named_parameters(root)) {
    require(
        parameter->layout().find(mesh::axis::tp) != nullptr || others.contains(parameter.get()),
        "parameter {}: no style says how it lies on axis tp (parallelism.tensor_parallel_degree = {}); attach one of "
        "shard/tensor_parallel.h to its module",
        name,
        context.size(mesh::axis::tp));
  }
}

}  // namespace lehr::shard

#include "lehr/shard/tensor_parallel.h"

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/low_rank_adapter.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/shard/sequence_gather.h"

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

// Returns the adapter of a layer as a pair of matrices; null if it has none.
nn::LowRankAdapter* low_rank_adapter(const nn::LinearImpl& linear) {
  auto* low_rank = dynamic_cast<nn::LowRankAdapter*>(linear.adapter().get());
  require(
      low_rank != nullptr || !linear.adapter(),
      "parallelism.tensor_parallel_degree: a projection has an adapter that is not an nn::LowRankAdapter, so its sharding "
      "is not known; expected 1");
  return low_rank;
}

// `input` is the placement of the columns of A, `output` that of the rows of B.
void lay_out_adapter(
    const nn::LinearImpl& linear, Placement input, Placement output, const DistributedContext& context) {
  if (const auto* low_rank = low_rank_adapter(linear)) {
    lay_out(*low_rank->input_matrix(), input, context);
    lay_out(*low_rank->output_matrix(), output, context);
  }
}

class GatherSequence : public nn::CallHook {
 public:
  explicit GatherSequence(const Group& group) : group_(group) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    return forward(nn::regathers() ? gather_and_regather(input, group_) : mesh::all_gather(input, group_, 1));
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

// Replaces the layer's forward: the bias must be added after the sum over ranks, or it would count once per rank.
class RowParallel : public nn::CallHook {
 public:
  RowParallel(const nn::LinearImpl& linear, const Group& group) : linear_(linear), group_(group) {}
  at::Tensor call(const at::Tensor& input, const Forward&) override {
    // (B, T, H), partial
    const auto& float8 = linear_.float8();
    at::Tensor part =
        float8 ? ops::linear_float8(input, linear_.weight, {}, *float8) : ops::linear(input, linear_.weight, {});
    if (const auto* low_rank = low_rank_adapter(linear_)) {
      require(
          low_rank->input_matrix()->layout().find(mesh::axis::tp) != nullptr,
          "a projection got an adapter after tensor parallelism was applied; add adapters before");
      part = part + linear_.adapter()->forward(input);
    }
    const at::Tensor output = mesh::reduce_scatter(part, group_, /*dim=*/1);  // (B, T/tp, H)
    return linear_.bias.defined() ? output + linear_.bias : output;
  }

 private:
  const nn::LinearImpl& linear_;  // owns the hook
  const Group& group_;
};

// All-gathers the ranks' parts (..., heads * D / ranks) of fewer heads than ranks, and takes this rank's head (..., D).
// As a type, the result is shard(last) of heads repeated once per rank; backward sums the gradients of the repetitions.
at::Tensor take_head(const at::Tensor& part, const Group& group, int64_t heads) {
  const int64_t last = part.dim() - 1;
  const int64_t size = part.size(last) * group.size() / heads;
  if (OperatorWatch* watch = operator_watch()) {
    std::vector<int64_t> shape = part.sizes().vec();
    shape.back() = size;
    return watch->state(
        {.name = "repeat_heads",
         .ranks = group.ranks(),
         .inputs = {{"heads", part, Placement::shard(last)}},
         .gives = Placement::shard(last),
         .shape = std::move(shape),
         .dtype = part.scalar_type()});
  }
  const at::Tensor all = mesh::all_gather(part, group, last);  // (..., heads * D)
  const int64_t head = group.rank() * heads / group.size();
  return all.narrow(last, head * size, size).contiguous();  // a view would keep all heads alive
}

// Key/value projection with fewer heads than ranks: each rank computes a part of a head, and takes the head of its
// queries.
class RepeatHeads : public nn::CallHook {
 public:
  RepeatHeads(const Group& group, int64_t heads) : group_(group), heads_(heads) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    return take_head(forward(input), group_, heads_);
  }

 private:
  const Group& group_;
  int64_t heads_;
};

// Replaces a norm's forward: the mean of squares is over the elements of all ranks. With fewer heads than ranks, each
// head is on equally many ranks, so the mean over the repetitions is the mean over the heads.
class NormOverRanks : public nn::CallHook {
 public:
  NormOverRanks(const nn::RMSNormImpl& norm, const Group& group, int64_t heads)
      : norm_(norm), group_(group), heads_(heads) {}
  at::Tensor call(const at::Tensor& input, const Forward&) override {
    const at::Tensor weight = heads_ < group_.size() ? take_head(norm_.weight, group_, heads_) : norm_.weight;
    const at::Tensor wide = input.to(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor squares = (wide * wide).sum(-1, /*keepdim=*/true);  // (..., 1), partial
    // Each rank scales elements of its own by the mean: its gradient is the sum of theirs.
    const at::Tensor sum = mesh::enter_replicated(mesh::all_reduce(squares, group_), group_);
    const auto count = static_cast<double>(input.size(-1) * group_.size());
    const at::Tensor normed = wide * (sum / count + norm_.eps()).rsqrt();
    // The result is rounded at the same place as in ops::rms_norm.
    return norm_.kind() == nn::NormWeight::plain
               ? normed.to(input.scalar_type()) * weight
               : (normed * (1 + weight.to(wide.scalar_type()))).to(input.scalar_type());
  }

 private:
  const nn::RMSNormImpl& norm_;  // owns the hook
  const Group& group_;
  int64_t heads_;
};

void norm_over_ranks(nn::RMSNormImpl& norm, int64_t heads, DistributedContext& context) {
  if (!is_one(context)) {
    lay_out_all(norm, Placement::shard(0), context);
    norm.add_call_hook(std::make_shared<NormOverRanks>(norm, context.group(mesh::axis::tp), heads));
  }
}

void repeat_heads(nn::LinearImpl& projection, int64_t heads, DistributedContext& context) {
  projection.add_call_hook(std::make_shared<RepeatHeads>(context.group(mesh::axis::tp), heads));
}

// Returns whether several ranks share a key/value head.
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
  const int64_t rows = heads * attention.head_dim();
  require(
      rows % ranks == 0,
      "num_key_value_heads: each of {} key/value heads is shared by {} ranks (parallelism.tensor_parallel_degree = "
      "{}), which does not divide its {} rows (head_dim)",
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

void feed_forward(nn::Module& block, nn::LinearImpl& up, nn::LinearImpl& down, DistributedContext& context) {
  require_divisible("intermediate_size", up.own_parameter("weight")->shape()[0], context);
  gather_sequence(block, context);
  column_parallel(up, context);
  row_parallel(down, context);
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
    for (const auto& parameter : linear.own_parameters()) {
      lay_out(*parameter, Placement::shard(0), context);
    }
    lay_out_adapter(linear, Placement::replicate(), Placement::shard(0), context);
  }
}

void column_parallel(nn::RMSNormImpl& norm, DistributedContext& context) {
  norm_over_ranks(norm, context.size(mesh::axis::tp), context);
}

void row_parallel(nn::LinearImpl& linear, DistributedContext& context) {
  if (is_one(context)) {
    return;
  }
  lay_out(*linear.own_parameter("weight"), Placement::shard(1), context);
  lay_out_adapter(linear, Placement::shard(1), Placement::replicate(), context);
  if (linear.bias.defined()) {
    lay_out(*linear.own_parameter("bias"), Placement::replicate(), context);
  }
  linear.add_call_hook(std::make_shared<RowParallel>(linear, context.group(mesh::axis::tp)));
}

void on_parts(nn::Module& module, DistributedContext& context) {
  if (is_one(context)) {
    return;
  }
  const auto mask_a_part = [&context](const torch::nn::Module& one) {
    const auto* linear = dynamic_cast<const nn::LinearImpl*>(&one);
    if (auto* low_rank = linear != nullptr ? low_rank_adapter(*linear) : nullptr) {
      low_rank->set_sequence_part(context.index(mesh::axis::tp), context.size(mesh::axis::tp));
    }
  };
  mask_a_part(module);
  for (const auto& below : module.modules(/*include_self=*/false)) {
    mask_a_part(*below);  // the layer of a linear sub-block
  }
  lay_out_all(module, Placement::replicate(), context);
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
  for (nn::Linear* const projection : {&attention.k_proj, &attention.v_proj}) {
    if (*projection) {
      column_parallel(**projection, context);
    }
    if (*projection && shared) {
      repeat_heads(**projection, attention.num_key_value_heads(), context);
    }
  }
  row_parallel(*attention.o_proj, context);
  if (attention.q_norm && attention.qk_norm_width() == nn::QKNormWidth::full) {
    column_parallel(*attention.q_norm, context);
    if (attention.k_norm) {
      norm_over_ranks(*attention.k_norm, attention.num_key_value_heads(), context);
    }
  } else if (attention.q_norm) {
    on_parts(*attention.q_norm, context);
    if (attention.k_norm) {
      on_parts(*attention.k_norm, context);
    }
  }
  if (attention.sinks.defined() && !is_one(context)) {
    lay_out(*attention.own_parameter("sinks"), Placement::shard(0), context);
  }
}

void tensor_parallel(nn::MultiHeadLatentAttentionImpl& attention, DistributedContext& context) {
  if (is_one(context)) {
    return;
  }
  // Each rank computes all latents, of whole sequences, and everything after them for its own heads.
  const auto of_all_heads = [&context](nn::Module& module) { lay_out_all(module, Placement::replicate(), context); };
  require_divisible("num_attention_heads", attention.num_attention_heads(), context);
  gather_sequence(attention, context);
  if (attention.q_proj) {
    column_parallel(*attention.q_proj, context);
  } else {
    of_all_heads(*attention.q_a_proj);
    of_all_heads(*attention.q_a_layernorm);
    column_parallel(*attention.q_b_proj, context);
  }
  of_all_heads(*attention.kv_a_proj_with_mqa);
  of_all_heads(*attention.kv_a_layernorm);
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
  feed_forward(block, *block.fc1, *block.fc2, context);
}

void tensor_parallel(nn::ReluSquaredMlpImpl& block, DistributedContext& context) {
  feed_forward(block, *block.up_proj, *block.down_proj, context);
}

}  // namespace lehr::shard

#include "lehr/shard/float8_scales.h"

#include <unordered_set>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/nn/experts.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/named_modules.h"
#include "lehr/ops/linear_float8/split_scales.h"

namespace lehr::shard {

namespace {
using ops::Float8Split;

class SplitScales : public nn::CallHook {
 public:
  explicit SplitScales(c10::intrusive_ptr<Float8Split> split) : split_(std::move(split)) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    const ops::Float8SplitScope scope(split_);
    return forward(input);
  }

 private:
  c10::intrusive_ptr<Float8Split> split_;
};

// Returns the maximum over the groups, one after the other; null if there is none.
Float8Split::Maximum maximum_over(std::vector<const mesh::Group*> groups) {
  if (groups.empty()) {
    return nullptr;
  }
  return [groups = std::move(groups)](const at::Tensor& numbers) {
    for (const mesh::Group* group : groups) {
      group->all_reduce_max(numbers);
    }
  };
}

// Returns the maximum over the ranks of cp and tp that hold the same experts, of numbers that are those of one expert
// after the other. These ranks have parts of the same sequences. Null if no other rank has tokens of its experts: each
// expert parallel group holds all experts, so one that covers cp and tp has one copy of each. The group of cp and tp
// reduces the numbers of all experts, since its ranks hold different ones.
Float8Split::Maximum maximum_of_experts(mesh::DistributedContext& context) {
  const int64_t ranks = context.size(mesh::axis::cp) * context.size(mesh::axis::tp);
  const int64_t parts = context.size(mesh::axis::ep), part = context.index(mesh::axis::ep);
  if (parts % ranks == 0) {
    return nullptr;
  }
  const mesh::Group* const group = &context.group({mesh::axis::cp, mesh::axis::tp});
  return [group, parts, part](const at::Tensor& numbers) {
    if (parts == 1) {
      group->all_reduce_max(numbers);
      return;
    }
    const int64_t count = numbers.size(0);
    const at::Tensor all = at::zeros({parts * count}, numbers.options());
    const at::Tensor mine = all.narrow(0, part * count, count);
    mine.copy_(numbers);
    group->all_reduce_max(all);
    numbers.copy_(mine);
  };
}

// The layers that tensor parallelism computes for all tokens on every rank, each for the heads of its rank.
std::unordered_set<const torch::nn::Module*> latent_projections(const nn::NamedModules& modules) {
  std::unordered_set<const torch::nn::Module*> found;
  for (const auto& [name, module] : modules) {
    if (const auto* attention = dynamic_cast<const nn::MultiHeadLatentAttentionImpl*>(module)) {
      found.insert(attention->kv_a_proj_with_mqa.get());
      if (attention->q_a_proj) {
        found.insert(attention->q_a_proj.get());
      }
    }
  }
  return found;
}

// Returns the placement of the layer's weight on tp.
Placement placement_of(const nn::LinearImpl& linear, const std::string& name) {
  const nn::ParameterPtr& weight = linear.tied() ? linear.tied() : linear.own_parameter("weight");
  const Placement* const placement = weight->layout().find(mesh::axis::tp);
  require(placement != nullptr, "{}: a float8 layer without a placement on axis tp; lay it out first", name);
  return *placement;
}
}  // namespace

void float8_scales_over_ranks(const torch::nn::Module& root, mesh::DistributedContext& context) {
  const bool tp = context.size(mesh::axis::tp) > 1, cp = context.size(mesh::axis::cp) > 1;
  if (!tp && !cp) {
    return;
  }
  const nn::NamedModules modules = nn::named_modules(root);
  const auto latent = latent_projections(modules);
  for (const auto& [name, module] : modules) {
    if (auto* experts = dynamic_cast<nn::GroupedLinearImpl*>(module); experts != nullptr && experts->float8()) {
      if (auto maximum = maximum_of_experts(context)) {
        auto split = c10::make_intrusive<Float8Split>();
        split->tokens = std::move(maximum);
        experts->add_call_hook(std::make_shared<SplitScales>(std::move(split)));
      }
      continue;
    }
    auto* linear = dynamic_cast<nn::LinearImpl*>(module);
    if (linear == nullptr || !linear->float8()) {
      continue;
    }
    std::vector<const mesh::Group*> inputs, outputs, tokens;
    if (tp) {
      require(
          !latent.contains(linear),
          "float8.exclude: {} computes latents that all heads share, and each rank of tensor parallelism has a part of "
          "the sum that is its gradient; add \".*_a_proj.*\", or set parallelism.tensor_parallel_degree to 1",
          name);
      const mesh::Group& group = context.group(mesh::axis::tp);
      const Placement placement = placement_of(*linear, name);
      const bool sharded = placement.kind == Placement::Kind::shard;
      (!sharded ? tokens : placement.dim == 0 ? outputs : inputs).push_back(&group);
    }
    if (cp) {
      tokens.push_back(&context.group(mesh::axis::cp));
    }
    auto split = c10::make_intrusive<Float8Split>();
    split->inputs = maximum_over(std::move(inputs));
    split->outputs = maximum_over(std::move(outputs));
    split->tokens = maximum_over(std::move(tokens));
    linear->add_call_hook(std::make_shared<SplitScales>(std::move(split)));
  }
}

}  // namespace lehr::shard

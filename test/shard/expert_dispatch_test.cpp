// Experts that are computed in parts equal those that are computed at once, whatever backward does.
#include "lehr/shard/expert_dispatch.h"

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/weight_gradients.h"
#include "lehr/shard/expert_parallel.h"
#include "test/shard/against_one_device.h"

namespace lehr::shard::test {
namespace {

using mesh::DeviceMeshParameters;
using mesh::DistributedContext;
using testing::HasSubstr;

constexpr int64_t kHidden = 6;

enum class Backward { whole, split, checkpointed, matmuls_recomputed };

struct Case {
  std::string what;
  DeviceMeshParameters mesh = {.data_parallel_shard = 2, .expert_parallel = 2};
  nn::ExpertOptions options = {};
  Backward backward = Backward::whole;
  std::vector<int64_t> preferred = {};  // all tokens go to these two experts
  int64_t tokens = 7;                   // of each rank
  bool adapters = false;
  std::optional<ops::Float8Recipe> float8 = {};
};

// A matrix per expert.
struct Adapter : nn::GroupedLinearAdapter {
  Adapter() { declare_parameter("matrix", matrix, {8, 5, kHidden}, nn::Init::normal(0.3)); }
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, int64_t first) override {
    return ops::grouped_linear(rows, matrix.narrow(0, first, ends.size(0)), ends);
  }
  at::Tensor matrix;
};

// Two MoE layers in sequence.
struct Mixtures : nn::Module {
  explicit Mixtures(const Case& c) {
    for (auto* layer : {&first, &second}) {
      *layer = nn::MoELayer(nn::MoEParameters{
          .hidden_size = kHidden,
          .intermediate_size = 5,
          .num_experts = 8,
          .top_k = 2,
          .enable_expert_bias = true,
          .expert_options = c.options,
          .init = nn::Init::normal(0.7)});
      if (c.adapters) {
        (*layer)->grouped_experts->up_proj->set_adapter("adapter", std::make_shared<Adapter>());
      }
      if (c.float8) {
        (*layer)->grouped_experts->up_proj->set_float8(*c.float8);
        (*layer)->grouped_experts->down_proj->set_float8(*c.float8);
      }
    }
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(x + first(x)); }

  nn::MoELayer first{nullptr};
  nn::MoELayer second{nullptr};
};

struct Result {
  at::Tensor output, input_gradient, counts;
  Gradients gradients;
};

// On one rank.
Result run(DistributedContext& context, const Case& c, int64_t parts) {
  const auto model = std::make_shared<Mixtures>(c);
  for (auto* layer : {&model->first, &model->second}) {
    parallelize_experts(context, **layer, parts);
  }
  replicate_the_rest(*model, context);
  fill(*model);
  for (const int64_t expert : c.preferred) {
    model->first->router->expert_bias[expert] = 5;
    model->second->router->expert_bias[expert] = 5;
  }
  const at::Tensor whole = at::arange(context.world_size() * c.tokens * kHidden, at::kDouble).mul(0.7).sin();
  const at::Tensor x =
      whole.view({context.world_size(), 1, c.tokens, kHidden})[context.rank()].clone().set_requires_grad(true);
  const auto block = [model](const at::Tensor& input) { return model->forward(input); };
  const auto wgrads = std::make_shared<ops::WeightGradients>();
  Result result;
  {
    const ops::WeightGradients::Scope scope(c.backward == Backward::split ? wgrads : nullptr);
    const ops::RecomputeMatmuls recompute(c.backward == Backward::matmuls_recomputed);
    result.output = c.backward == Backward::checkpointed ? nn::checkpoint(block, x) : block(x);
  }
  const at::Tensor gradient = result.output.detach().cos();
  if (c.backward == Backward::split) {
    wgrads->backward_input({result.output}, {gradient});
    EXPECT_EQ(wgrads->size(), 2U * (c.options.clamp ? 2 : 3) + 2) << "experts and routers";
    EXPECT_FALSE(model->first->grouped_experts->down_proj->weight.grad().defined());
    wgrads->backward_weight();
  } else {
    result.output.backward(gradient);
  }
  result.input_gradient = x.grad();
  result.gradients = gradients_of(*model);
  result.counts = nn::moe_tokens_per_expert(*model);
  return result;
}

void expect_equal_to_one_part(const Case& c, int64_t parts) {
  on_mesh(c.mesh, [&](DistributedContext& context) {
    const Result whole = run(context, c, 1);
    const Result cut = run(context, c, parts);
    const std::string subject = fmt::format("{}, {} parts, rank {}", c.what, parts, context.rank());
    expect_equal(subject + ", output", cut.output, whole.output);
    expect_equal(subject + ", input", cut.input_gradient, whole.input_gradient);
    EXPECT_TRUE(at::equal(cut.counts, whole.counts)) << subject;
    for (const auto& [name, gradient] : whole.gradients) {
      ASSERT_TRUE(gradient.defined()) << subject << ", " << name;
      expect_equal(subject + ", " + name, cut.gradients.at(name), gradient);
    }
  });
}

TEST(ExpertDispatch, EqualsOnePart) {
  const nn::ExpertOptions clamped{.bias = true, .clamp = ops::SwiGLUClamp{}};
  const DeviceMeshParameters four{.data_parallel_shard = 4, .expert_parallel = 4};
  for (const Case& c : std::vector<Case>{
           {.what = "two ranks"},
           {.what = "biases and a clamped gate", .options = clamped},
           {.what = "no gate", .options = {.relu_squared = true}},
           {.what = "biases and split backward", .options = {.bias = true}, .backward = Backward::split},
           {.what = "checkpointed", .backward = Backward::checkpointed},
           {.what = "matmuls recomputed", .backward = Backward::matmuls_recomputed},
           {.what = "split backward", .backward = Backward::split},
           {.what = "replicas", .mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 2}},
           {.what = "parts without rows", .preferred = {0, 7}, .tokens = 3},
           {.what = "no tokens", .tokens = 0},
           {.what = "adapters", .adapters = true},
           {.what = "float8", .float8 = ops::Float8Recipe::rowwise},
           {.what = "float8, adapters and split backward",
           .backward = Backward::split,
           .adapters = true,
           .float8 = ops::Float8Recipe::rowwise},
           {.what = "float8, matmuls recomputed",
           .backward = Backward::matmuls_recomputed,
           .float8 = ops::Float8Recipe::rowwise_with_gw_hp},
           {.what = "ranks without rows", .mesh = four, .preferred = {2, 3}, .tokens = 2}}) {
    expect_equal_to_one_part(c, 2);
  }
  expect_equal_to_one_part({.what = "an expert each"}, 4);
}

// Frozen experts have no gradient, and their operands are not kept.
TEST(ExpertDispatch, AcceptsFrozenExperts) {
  on_mesh({.data_parallel_shard = 2, .expert_parallel = 2}, [&](DistributedContext& context) {
    const auto model = std::make_shared<Mixtures>(Case{});
    for (auto* layer : {&model->first, &model->second}) {
      parallelize_experts(context, **layer, 2);
      for (const auto& [name, parameter] : nn::named_parameters(*(*layer)->grouped_experts)) {
        parameter->set_trainable(false);
      }
    }
    replicate_the_rest(*model, context);
    fill(*model);
    const at::Tensor x = at::ones({1, 3, kHidden}, at::kDouble).set_requires_grad(true);
    model->forward(x).sum().backward();
    EXPECT_GT(x.grad().abs().max().item<double>(), 0);
    EXPECT_FALSE(model->first->grouped_experts->up_proj->weight.grad().defined());
  });
}

TEST(ExpertDispatch, RefusesPartsOfUnequalSize) {
  const DeviceMeshParameters two{.data_parallel_shard = 2, .expert_parallel = 2};
  const std::string message = problem_on(two, [](DistributedContext& context) {
    const auto model = std::make_shared<Mixtures>(Case{});
    parallelize_experts(context, *model->first, 3);
  });
  EXPECT_THAT(
      message,
      HasSubstr("parallelism.expert_parallel_parts: the experts of a rank (4) must be a multiple of it, found 3"));
}

}  // namespace
}  // namespace lehr::shard::test

// MoE layers whose experts are spread over ranks equal one device: outputs, gradients, losses, token counts.
#include "lehr/shard/expert_parallel.h"

#include <numeric>

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "test/shard/against_one_device.h"

namespace lehr::shard::test {
namespace {

using mesh::DeviceMeshParameters;
using mesh::DistributedContext;
using testing::HasSubstr;

constexpr int64_t kHidden = 6;
constexpr int64_t kExperts = 8;

nn::MoEParameters mixture(bool expert_bias) {
  return {
      .hidden_size = kHidden,
      .intermediate_size = 5,
      .num_experts = kExperts,
      .top_k = 2,
      .enable_expert_bias = expert_bias,
      .shared_expert = nn::SharedExpertParameters{.intermediate_size = 4, .enable_gate = true},
      .init = nn::Init::normal(0.7)};
}

// An adapter with one matrix per expert.
struct Adapter : nn::GroupedLinearAdapter {
  explicit Adapter(int64_t experts) {
    declare_parameter("matrix", matrix, {experts, 5, kHidden}, nn::Init::normal(0.3));
  }
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, int64_t /*first*/) override {
    return ops::grouped_linear(rows, matrix, ends);
  }
  at::Tensor matrix;
};

// Two MoE layers in sequence that share their router losses.
struct TwoMixtures : nn::Module {
  explicit TwoMixtures(bool expert_bias) {
    for (auto* layer : {&first, &second}) {
      *layer = nn::MoELayer(mixture(expert_bias));
      (*layer)->use_losses(losses);
    }
    first->grouped_experts->up_proj->set_adapter("adapter", std::make_shared<Adapter>(kExperts));
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(x + first(x)); }

  nn::MoELayer first{nullptr};
  nn::MoELayer second{nullptr};
  std::shared_ptr<nn::RouterLosses> losses = std::make_shared<nn::RouterLosses>();
};

void prefer(TwoMixtures& model, const std::vector<int64_t>& experts) {
  for (const auto expert : experts) {
    model.first->router->expert_bias[expert] = 5;
    model.second->router->expert_bias[expert] = 5;
  }
}

struct Case {
  std::string what;
  DeviceMeshParameters mesh;
  std::vector<int64_t> preferred = {};  // all tokens go to these two experts
  std::vector<int64_t> tokens = {};     // number of tokens of each rank; 3 if empty
  bool recompute = false;
};

struct OneDevice {
  at::Tensor x, w, output;
  Gradients gradients;
  at::Tensor counts;
};

OneDevice on_one_device(int64_t tokens, const std::vector<int64_t>& preferred, const nn::RouterLossWeights& losses) {
  at::manual_seed(1);
  OneDevice one{
      .x = at::randn({1, tokens, kHidden}, at::kDouble).set_requires_grad(true),
      .w = at::randn({1, tokens, kHidden}, at::kDouble),
      .output = {},
      .gradients = {},
      .counts = {}};
  const auto model = std::make_shared<TwoMixtures>(!preferred.empty());
  fill(*model);
  prefer(*model, preferred);
  model->losses->begin(losses);
  one.output = model->forward(one.x);
  (one.output * one.w).sum().backward();
  one.gradients = gradients_of(*model);
  one.counts = nn::moe_tokens_per_expert(*model);
  return one;
}

void expect_as_one_device(const Case& c) {
  const int64_t world = c.mesh.world_size();
  const std::vector<int64_t> tokens = c.tokens.empty() ? std::vector<int64_t>(static_cast<size_t>(world), 3) : c.tokens;
  const OneDevice one = on_one_device(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), c.preferred, {});
  on_mesh(c.mesh, [&](DistributedContext& context) {
    const auto model = std::make_shared<TwoMixtures>(!c.preferred.empty());
    parallelize_experts(context, *model->first);
    parallelize_experts(context, *model->second);
    replicate_the_rest(*model, context);
    fill(*model);
    prefer(*model, c.preferred);
    EXPECT_EQ(model->first->grouped_experts->up_proj->weight.size(0), kExperts / c.mesh.expert_parallel);
    const auto rank = static_cast<size_t>(context.rank());
    const int64_t begin = std::accumulate(tokens.begin(), tokens.begin() + context.rank(), int64_t{0});
    const auto mine = [&](const at::Tensor& whole) { return whole.detach().narrow(1, begin, tokens[rank]); };
    const at::Tensor x = mine(one.x).clone().set_requires_grad(true);
    const auto block = [model](const at::Tensor& input) { return model->forward(input); };
    const at::Tensor output = c.recompute ? nn::checkpoint(block, x) : block(x);
    expect_equal(c.what + ", output", output, mine(one.output));
    (output * mine(one.w)).sum().backward();
    expect_equal(c.what + ", input", x.grad(), mine(one.x.grad()));
    expect_gradients(*model, context, one.gradients, c.what);
    EXPECT_TRUE(at::equal(reduce_expert_loads(context, *model), one.counts)) << c.what;
  });
}

TEST(ExpertParallel, EqualsOneDeviceOnEveryMesh) {
  const std::vector<Case> cases = {
      {.what = "ep 2", .mesh = {.data_parallel_shard = 2, .expert_parallel = 2}},
      {.what = "ep 4", .mesh = {.data_parallel_shard = 4, .expert_parallel = 4}},
      {.what = "ep 2, ep_shard 2", .mesh = {.data_parallel_shard = 4, .expert_parallel = 2}},
      {.what = "ep 2, replicate 2",
       .mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 2}},
      {.what = "ep 4 over cp and tp", .mesh = {.context_parallel = 2, .tensor_parallel = 2, .expert_parallel = 4}},
      {.what = "ep 4, ep_shard 2",
       .mesh = {.data_parallel_shard = 2, .context_parallel = 2, .tensor_parallel = 2, .expert_parallel = 4}},
      {.what = "ep 1 over tp", .mesh = {.tensor_parallel = 2}},
      {.what = "recomputed", .mesh = {.data_parallel_shard = 4, .expert_parallel = 4}, .recompute = true}};
  for (const Case& c : cases) {
    expect_as_one_device(c);
  }
}

TEST(ExpertParallel, AcceptsRanksWithoutRowsAndRanksWithoutTokens) {
  const DeviceMeshParameters mesh{.data_parallel_shard = 4, .expert_parallel = 4};
  const std::vector<Case> cases = {
      {.what = "all to the first rank", .mesh = mesh, .preferred = {0, 1}},
      {.what = "all to two ranks, recomputed", .mesh = mesh, .preferred = {3, 6}, .recompute = true},
      {.what = "a rank without tokens", .mesh = mesh, .tokens = {5, 0, 1, 9}},
      {.what = "without tokens or rows", .mesh = mesh, .preferred = {0, 7}, .tokens = {4, 0, 3, 0}}};
  for (const Case& c : cases) {
    expect_as_one_device(c);
  }
}

TEST(ExpertParallel, SumsRouterLossesOverTheRanksOfAMicrobatch) {
  const nn::RouterLossWeights weights{.load_balancing = 0.3, .z = 0.2, .share = 0.7};
  const OneDevice one = on_one_device(12, {}, weights);
  const auto model = std::make_shared<TwoMixtures>(false);
  fill(*model);
  model->losses->begin(weights);
  model->forward(one.x.detach());
  const double balance = model->losses->load_balancing_loss().item<double>();
  const double z = model->losses->z_loss().item<double>();
  EXPECT_GT(balance, 1);
  for (const bool ask : {true, false}) {  // gradients alone communicate, too
    on_mesh({.context_parallel = 2, .tensor_parallel = 2, .expert_parallel = 2}, [&](DistributedContext& context) {
      const auto part = std::make_shared<TwoMixtures>(false);
      parallelize_experts(context, *part->first);
      parallelize_experts(context, *part->second);
      share_router_losses(context, *part->losses);
      replicate_the_rest(*part, context);
      fill(*part);
      part->losses->begin(weights);
      const auto mine = [&](const at::Tensor& whole) { return whole.detach().narrow(1, 3 * context.rank(), 3); };
      const at::Tensor output = part->forward(mine(one.x));
      if (ask) {
        EXPECT_NEAR(part->losses->load_balancing_loss().item<double>(), balance, 1e-12);
        EXPECT_NEAR(part->losses->z_loss().item<double>(), z, 1e-11 * z);
      }
      (output * mine(one.w)).sum().backward();
      expect_gradients(*part, context, one.gradients, "router losses");
    });
  }
}

TEST(ExpertParallel, UpdatesTheExpertBiasLikeOneDevice) {
  const OneDevice one = on_one_device(24, {2, 5}, {});
  const auto whole = std::make_shared<TwoMixtures>(true);
  fill(*whole);
  nn::update_expert_bias(*whole, one.counts, 0.1);
  on_mesh(
      {.data_parallel_replicate = 2, .data_parallel_shard = 2, .context_parallel = 2, .expert_parallel = 4},
      [&](DistributedContext& context) {
        const auto model = std::make_shared<TwoMixtures>(true);
        parallelize_experts(context, *model->first);
        parallelize_experts(context, *model->second);
        fill(*model);
        prefer(*model, {2, 5});
        model->forward(one.x.detach().narrow(1, 3 * context.rank(), 3));
        const at::Tensor loads = reduce_expert_loads(context, *model);
        EXPECT_TRUE(at::equal(loads, one.counts));
        for (auto* layer : nn::moe_layers(*model)) {
          layer->router->expert_bias.zero_();
        }
        nn::update_expert_bias(*model, loads, 0.1);
        EXPECT_TRUE(at::equal(model->first->router->expert_bias, whole->first->router->expert_bias));
        EXPECT_TRUE(at::equal(model->second->router->expert_bias, whole->second->router->expert_bias));
      });
}

TEST(ExpertParallel, RefusesANumberOfExpertsThatDoesNotDivide) {
  EXPECT_THAT(
      problem_on(
          {.data_parallel_shard = 3, .expert_parallel = 3},
          [](DistributedContext& context) { parallelize_experts(context, *nn::MoELayer(mixture(false))); }),
      HasSubstr("parallelism.expert_parallel_degree: num_experts (8) must be a multiple of it, found 3"));
  EXPECT_THAT(
      problem_on(
          {.data_parallel_shard = 2, .expert_parallel = 2},
          [](DistributedContext& context) {
            nn::MoELayer layer(mixture(false));
            layer->grouped_experts->down_proj->set_adapter("adapter", std::make_shared<Adapter>(4));
            parallelize_experts(context, *layer);
          }),
      HasSubstr("down_proj.adapter.matrix of the experts: expected 8 experts in its first dimension, found 4"));
}

}  // namespace
}  // namespace lehr::shard::test

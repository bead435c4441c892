// Scores of experts, compared with MoE layers without the expert, elections by hand and explicit sums.
#include "lehr/prune/score_experts.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/shard/one_device.h"

namespace lehr::prune {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kHidden = 6, kInner = 4, kExperts = 5, kTokens = 40;

struct Case {
  std::string name;
  int64_t top_k = 2;
  bool renormalize = true, bias = false, shared = false;
  nn::RouterOptions router = {};
  int64_t latent = 0;
};

nn::MoELayer mixture_of(const Case& form, int64_t experts = kExperts) {
  nn::MoELayer mixture(nn::MoEParameters{
      .hidden_size = kHidden,
      .intermediate_size = kInner,
      .num_experts = experts,
      .top_k = form.top_k,
      .renormalize_probabilities = form.renormalize,
      .enable_expert_bias = form.bias,
      .router_options = form.router,
      .shared_expert = form.shared ? std::optional(nn::SharedExpertParameters{.intermediate_size = 3}) : std::nullopt,
      .latent_size = form.latent});
  shard::test::make_real(*mixture);
  if (form.bias) {
    mixture->router->expert_bias.copy_(at::linspace(0.4, -0.4, experts));
  }
  return mixture;
}

// An MoE layer with the weights of `whole` except those of one expert.
nn::MoELayer without(nn::MoELayer whole, const Case& form, int64_t expert) {
  nn::MoELayer left = mixture_of(form, kExperts - 1);
  at::NoGradGuard no_grad;
  const at::Tensor kept = at::cat({at::arange(expert), at::arange(expert + 1, kExperts)});
  const auto from = nn::named_parameters(*whole), to = nn::named_parameters(*left);
  for (size_t i = 0; i < from.size(); ++i) {
    const at::Tensor source = from[i].parameter->value();
    const bool of_experts = from[i].parameter->shape() != to[i].parameter->shape();
    to[i].parameter->value().copy_(of_experts ? source.index_select(0, kept) : source);
  }
  return left;
}

MoECall call_of(nn::MoELayer& mixture, const at::Tensor& tokens, const at::Tensor& counted = {}) {
  at::NoGradGuard no_grad;
  mixture->eval();
  MoECall call{.tokens = tokens, .output = mixture(tokens.unsqueeze(0))[0], .counted = counted};
  call.routing = mixture->last_routing();
  const auto order = ops::sort_by_expert(call.routing.selected_expert_indices, mixture->num_experts());
  const at::Tensor inputs = mixture->fc1_latent_proj ? mixture->fc1_latent_proj(tokens) : tokens;
  const at::Tensor rows = ops::permute_tokens(inputs, order);
  const at::Tensor gate = mixture->grouped_experts->gate_proj(rows, order.ends);
  call.inner = at::silu(gate) * mixture->grouped_experts->up_proj(rows, order.ends);
  return call;
}

at::Tensor tokens_of(int64_t seed = 5) {
  at::manual_seed(seed);
  return at::randn({kTokens, kHidden}, at::kDouble);
}

// Sums in another order.
void expect_near(const at::Tensor& found, const at::Tensor& wanted) {
  ASSERT_EQ(found.sizes(), wanted.sizes());
  EXPECT_GT(wanted.abs().max().item<double>(), 0) << "zeros show nothing";
  EXPECT_LT((found - wanted).abs().max().item<double>(), 1e-12 * wanted.abs().max().item<double>()) << found << wanted;
}

class Removal : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Mixtures,
    Removal,
    ::testing::Values(
        Case{.name = "Plain"},
        Case{.name = "OneAToken", .top_k = 1},
        Case{.name = "OneATokenNotRenormalized", .top_k = 1, .renormalize = false},
        Case{.name = "NotRenormalized", .top_k = 3, .renormalize = false},
        Case{.name = "Biased", .bias = true},
        Case{
            .name = "Sigmoid",
            .top_k = 3,
            .bias = true,
            .router = {.score = nn::RouterScore::sigmoid, .norm_eps = 1e-20, .routed_scaling_factor = 2.5}},
        Case{.name = "WithASharedExpert", .top_k = 4, .bias = true, .shared = true},
        Case{.name = "BetweenProjections", .shared = true, .latent = 3}),
    [](const auto& one) { return one.param.name; });

TEST_P(Removal, EqualsTheLossOfAnMoELayerWithoutTheExpert) {
  nn::MoELayer mixture = mixture_of(GetParam());
  const at::Tensor tokens = tokens_of();
  const MoECall call = call_of(mixture, tokens);
  std::vector<at::Tensor> mse, cosine;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    nn::MoELayer left = without(mixture, GetParam(), expert);
    const at::Tensor output = left(tokens.unsqueeze(0))[0].detach();
    const at::Tensor its_own = call.routing.selected_expert_indices.eq(expert).any(1);
    mse.push_back(((output - call.output).square().mean(1) * its_own).mean());
    cosine.push_back(((1 - at::cosine_similarity(output, call.output, -1)) * its_own).mean());
  }
  at::NoGradGuard no_grad;
  RemoveExpertsIndependent by_mse(RemoveExpertsIndependent::Distance::mse);
  by_mse.accumulate(*mixture, call);
  expect_near(by_mse.scores(), at::stack(mse));
  RemoveExpertsIndependent by_cosine(RemoveExpertsIndependent::Distance::cosine);
  by_cosine.accumulate(*mixture, call);
  expect_near(by_cosine.scores(), at::stack(cosine));
}

TEST(ScoresOfExperts, AreRefusedIfTheRouterHasGroups) {
  // Five experts have no groups.
  nn::MoELayer mixture = mixture_of({.router = {.n_group = 3, .topk_group = 2}}, 6);
  at::NoGradGuard no_grad;
  const MoECall call = call_of(mixture, tokens_of());
  RemoveExpertsIndependent removal(RemoveExpertsIndependent::Distance::mse);
  RankedChoiceVoting voting;
  for (ExpertHook* hook : {static_cast<ExpertHook*>(&removal), static_cast<ExpertHook*>(&voting)}) {
    EXPECT_THAT(
        [&] { hook->accumulate(*mixture, call); },
        ::testing::Throws<Error>(
            ::testing::Property(&Error::what, ::testing::HasSubstr("n_group: scores of experts are not supported"))));
  }
}

TEST(RemoveExpertsIndependent, ScoresAnUnusedExpertLowest) {
  for (const auto distance : {RemoveExpertsIndependent::Distance::mse, RemoveExpertsIndependent::Distance::cosine}) {
    nn::MoELayer mixture = mixture_of({.bias = true});
    mixture->router->expert_bias[3] = -10;
    at::NoGradGuard no_grad;
    RemoveExpertsIndependent hook(distance);
    hook.accumulate(*mixture, call_of(mixture, tokens_of()));
    EXPECT_EQ(hook.scores()[3].item<double>(), 0);
    EXPECT_EQ(hook.scores().argmin().item<int64_t>(), 3);
  }
}

// Without it, the routed part of the output is zero.
TEST(RemoveExpertsIndependent, ScoresTheOnlyExpert) {
  const Case form{.top_k = 1};
  nn::MoELayer mixture = mixture_of(form, 1);
  at::NoGradGuard no_grad;
  const MoECall call = call_of(mixture, tokens_of());
  RemoveExpertsIndependent hook(RemoveExpertsIndependent::Distance::mse);
  hook.accumulate(*mixture, call);
  expect_near(hook.scores(), call.output.square().mean().view(1));
}

TEST(ExpertHooks, DoNotDependOnBatchingAndPadding) {
  nn::MoELayer mixture = mixture_of({});
  at::NoGradGuard no_grad;
  const auto each = [&](const auto& make) {
    const auto whole = make(), cut = make(), padded = make();
    whole->accumulate(*mixture, call_of(mixture, tokens_of()));
    for (const at::Tensor& part : tokens_of().split_with_sizes({3, 30, 7}, 0)) {
      cut->accumulate(*mixture, call_of(mixture, part));
    }
    expect_near(cut->scores(), whole->scores());
    const at::Tensor counted = at::cat({at::ones({kTokens}, at::kBool), at::zeros({kTokens}, at::kBool)});
    padded->accumulate(*mixture, call_of(mixture, at::cat({tokens_of(), tokens_of(6)}), counted));
    expect_near(padded->scores(), whole->scores());
    EXPECT_THROW(make()->scores(), Error);
  };
  each([] { return std::make_unique<RemoveExpertsIndependent>(RemoveExpertsIndependent::Distance::mse); });
  each([] { return std::make_unique<RemoveExpertsIndependent>(RemoveExpertsIndependent::Distance::cosine); });
  each([] { return std::make_unique<RankedChoiceVoting>(); });
  each([] { return std::make_unique<IndependentExpertChannelContribution>(); });
}

TEST(ExpertHooks, RefuseNonFiniteValues) {
  nn::MoELayer mixture = mixture_of({});
  at::NoGradGuard no_grad;
  const auto each = [&](const auto& make) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      at::Tensor tokens = tokens_of();
      tokens[kTokens - 1][2] = bad;
      const auto hook = make();
      hook->accumulate(*mixture, call_of(mixture, tokens));
      EXPECT_THAT([&] { hook->scores(); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("not finite"))) << bad;
    }
  };
  each([] { return std::make_unique<RemoveExpertsIndependent>(RemoveExpertsIndependent::Distance::mse); });
  each([] { return std::make_unique<RemoveExpertsIndependent>(RemoveExpertsIndependent::Distance::cosine); });
  each([] { return std::make_unique<RankedChoiceVoting>(); });
  each([] { return std::make_unique<IndependentExpertChannelContribution>(); });
}

std::vector<double> elected(std::vector<std::pair<int, std::vector<int16_t>>> ballots, int64_t votes) {
  std::vector<at::Tensor> rows;
  for (const auto& [copies, ballot] : ballots) {
    rows.push_back(at::tensor(ballot, at::kShort).expand({copies, -1}));
  }
  const at::Tensor scores = RankedChoiceVoting::count(at::cat(rows), votes);
  return {scores.const_data_ptr<double>(), scores.const_data_ptr<double>() + scores.numel()};
}

TEST(RankedChoiceVoting, RemovesAnExpertWithoutVotesFirst) {
  EXPECT_THAT(elected({{5, {0, 1, 2}}, {1, {1, 0, 2}}}, 1), ElementsAre(2, 1, 0));
}

TEST(RankedChoiceVoting, TransfersVotesOfRemovedExperts) {
  // 4, 3 and 2 votes; the two are transferred to expert 1, which then has more than expert 0.
  EXPECT_THAT(elected({{4, {0, 1, 2}}, {3, {1, 2, 0}}, {2, {2, 1, 0}}}, 1), ElementsAre(1, 2, 0));
  // Each ballot has two votes: the experts get 3, 4, 2 and 1. Expert 3's vote is transferred to 0, then expert 2's
  // votes to 0 and 1. These are tied now, but 0 had fewer votes at first.
  EXPECT_THAT(
      elected({{2, {0, 1, 2, 3}}, {1, {1, 0, 2, 3}}, {1, {2, 1, 3, 0}}, {1, {3, 2, 0, 1}}}, 2),
      ElementsAre(2, 3, 1, 0));
}

TEST(RankedChoiceVoting, CountsTheRoutersChoices) {
  nn::MoELayer mixture = mixture_of({.bias = true});
  at::NoGradGuard no_grad;
  const MoECall call = call_of(mixture, tokens_of());
  RankedChoiceVoting hook;
  hook.accumulate(*mixture, call);
  const at::Tensor used = at::bincount(call.routing.selected_expert_indices.flatten(), {}, kExperts);
  EXPECT_EQ(hook.scores().argmin().item<int64_t>(), used.argmin().item<int64_t>());
}

TEST(IndependentExpertChannelContribution, UsesTheTokensOfEachExpertOnly) {
  nn::MoELayer mixture = mixture_of({.bias = true});
  mixture->router->expert_bias[2] = -10;
  at::NoGradGuard no_grad;
  const MoECall call = call_of(mixture, tokens_of());
  at::Tensor wanted = at::zeros({kExperts, kInner}, at::kDouble);
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const at::Tensor own = tokens_of().index({call.routing.selected_expert_indices.eq(expert).any(1)});
    const auto weight = [&](nn::GroupedLinear& linear) { return linear->weight[expert]; };
    const at::Tensor inner = at::silu(own.matmul(weight(mixture->grouped_experts->gate_proj).t())) *
                             own.matmul(weight(mixture->grouped_experts->up_proj).t());
    if (own.size(0) > 0) {
      wanted[expert] = inner.abs().mean(0) * weight(mixture->grouped_experts->down_proj).square().sum(0).sqrt();
    }
  }
  EXPECT_EQ(wanted[2].abs().max().item<double>(), 0) << "an expert without tokens";
  IndependentExpertChannelContribution hook;
  hook.accumulate(*mixture, call);
  expect_near(hook.scores(), wanted);
}

}  // namespace
}  // namespace lehr::prune

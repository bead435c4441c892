// Scores of channels, KV heads and layers, compared with their definitions and with published values.
#include "lehr/prune/score_channels.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::prune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> numbers(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// The initial weight of a torch.nn.Linear without bias, from torch's generator.
at::Tensor new_linear(int64_t inputs, int64_t outputs) {
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  return at::empty({outputs, inputs}).uniform_(-bound, bound);
}

at::Tensor scores_of(ChannelHook&& hook, const at::Tensor& weight, const std::vector<at::Tensor>& batches) {
  for (const at::Tensor& batch : batches) {
    hook.accumulate(batch, weight);
  }
  return hook.scores();
}

// Sums of some hundred positive terms in another order.
void expect_near(const at::Tensor& found, const at::Tensor& wanted, double relative = 1e-13) {
  ASSERT_EQ(found.sizes(), wanted.sizes());
  EXPECT_GT(wanted.abs().max().item<double>(), 0) << "zeros show nothing";
  EXPECT_TRUE(at::allclose(found, wanted, relative, /*atol=*/0)) << found << wanted;
}

TEST(RemovalSchedule, RemovesTheLastChannelsWithTheLastBatch) {
  EXPECT_THAT(removal_schedule(10, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(removal_schedule(4, 10), ElementsAre(0, 1, 0, 0, 1, 0, 1, 0, 0, 1));
  for (int64_t channels = 1; channels < 60; ++channels) {
    for (int64_t batches = 1; batches < 60; ++batches) {
      const auto schedule = removal_schedule(channels, batches);
      ASSERT_EQ(static_cast<int64_t>(schedule.size()), batches);
      EXPECT_EQ(std::accumulate(schedule.begin(), schedule.end(), int64_t{0}), channels);
      EXPECT_GT(schedule.back(), 0) << channels << " channels, " << batches << " batches";
    }
  }
}

TEST(ErrorsOfRemoval, EqualTheChangeOfTheOutputs) {
  at::manual_seed(1);
  const at::Tensor inputs = at::randn({12, 7}, at::kDouble), weight = at::randn({5, 7}, at::kDouble);
  const at::Tensor removed = at::tensor({4, 1}, at::kLong);
  const at::Tensor errors = errors_of_removal(inputs, weight, removed);
  for (const int64_t channel : {0, 2, 3, 5, 6}) {
    at::Tensor left = at::ones({7}, at::kDouble).index_fill(0, removed, 0);
    left[channel] = 0;
    const at::Tensor change = (inputs - inputs * left).matmul(weight.t());
    const at::Tensor wanted = (change.square().sum(1) + 1e-8).sqrt();
    EXPECT_LT((errors.select(1, channel) - wanted).abs().max().item<double>(), 1e-10);
  }
}

// The expected values are those of modelopt's tests of its hooks, with inputs from the same generator.
TEST(ChannelHooks, EqualUpstreamsRanksAndNorms) {
  for (const auto& shape : {std::vector<int64_t>{32, 8, 6}, {8, 32, 6}}) {
    at::manual_seed(42);
    const at::Tensor weight = new_linear(6, 4);
    const std::vector<at::Tensor> batches{at::randn(shape), at::randn(shape), at::randn(shape)};
    EXPECT_THAT(numbers(scores_of(IterativeChannelContribution(6, 3), weight, batches)), ElementsAre(5, 1, 3, 2, 4, 0));
  }
  at::manual_seed(42);
  const at::Tensor weight = new_linear(6, 4);
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 3; ++i) {
    batches.push_back(at::randn({2, 3, 6}).transpose(0, 1));  // tokens are the first dimension there
  }
  const at::Tensor wanted = at::tensor({3.2030, 2.5018, 2.5272, 1.9222, 2.6204, 2.2623}, at::kDouble);
  EXPECT_LT((scores_of(L2Norm(), weight, batches) - wanted).abs().max().item<double>(), 1e-4);
}

// 20 of 50 channels are removed; the errors of the outputs of 1000 batches equal those in modelopt's tests.
TEST(ChannelHooks, RemovalHasUpstreamsErrors) {
  at::manual_seed(42);
  const at::Tensor weight = new_linear(50, 30);
  std::vector<at::Tensor> batches, tokens_first;
  for (int i = 0; i < 1000; ++i) {
    tokens_first.push_back(at::randn({16, 8, 50}));
    batches.push_back(tokens_first.back().transpose(0, 1));
  }
  const auto expect_errors = [&](const at::Tensor& scores, double rmse, double cosine) {
    const at::Tensor best = std::get<1>(scores.topk(30));
    const at::Tensor kept = at::zeros({50}).index_fill(0, best, 1);
    double errors = 0, similarity = 0;
    for (const at::Tensor& batch : batches) {
      const at::Tensor whole = batch.reshape({-1, 50}).matmul(weight.t());
      const at::Tensor pruned = (batch.reshape({-1, 50}) * kept).matmul(weight.t());
      errors += (whole - pruned).square().mean().sqrt().item<double>();
      similarity += at::cosine_similarity(whole.flatten(), pruned.flatten(), 0).item<double>();
    }
    EXPECT_NEAR(errors / 1000, rmse, 1e-5 * rmse);
    EXPECT_NEAR(similarity / 1000, cosine, 1e-5 * cosine);
  };
  expect_errors(scores_of(L2Norm(), weight, batches), 0.3616334, 0.7814186);
  expect_errors(scores_of(IterativeChannelContribution(50, 1000), weight, batches), 0.339014, 0.8110392);
  expect_errors(scores_of(IndependentChannelContribution(), weight, batches), 0.3385471, 0.8116209);
}

TEST(IterativeChannelContribution, KnowsTheNumberOfBatches) {
  const at::Tensor weight = at::randn({3, 4}), input = at::randn({1, 2, 4});
  IterativeChannelContribution hook(4, 2);
  hook.accumulate(input, weight);
  EXPECT_THAT([&] { hook.scores(); }, ::testing::ThrowsMessage<Error>(HasSubstr("expected 2 batches, found 1")));
  hook.accumulate(input, weight);
  EXPECT_THAT(
      [&] { hook.accumulate(input, weight); },
      ::testing::ThrowsMessage<Error>(HasSubstr("expected 2 batches, found one more")));
}

TEST(IterativeChannelContribution, RefusesNonFiniteActivations) {
  at::Tensor input = at::randn({1, 2, 4});
  input[0][1][2] = NAN;
  EXPECT_THAT(
      [&] {
        IterativeChannelContribution(4, 1).accumulate(input, at::randn({3, 4}));
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("not finite")));
}

TEST(ChannelHooks, RefuseNonFiniteValues) {
  const auto refuses = [](const auto& make) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      at::Tensor input = at::ones({2, 3, 4}, at::kDouble), weight = at::ones({5, 4}, at::kDouble);
      input[1][2][3] = bad;
      const auto problem = [&] {
        const auto hook = make();
        hook->accumulate(input, weight);
        hook->scores();
      };
      EXPECT_THAT(problem, ::testing::ThrowsMessage<Error>(HasSubstr("not finite"))) << bad;
    }
  };
  refuses([] { return std::make_unique<IterativeChannelContribution>(4, 1); });
  refuses([] { return std::make_unique<IndependentChannelContribution>(); });
  refuses([] { return std::make_unique<IndependentKvHeadContribution>(2); });
  refuses([] { return std::make_unique<L2Norm>(); });
  BlockInfluence influence;
  influence.accumulate(at::full({1, 2, 3}, INFINITY), at::ones({1, 2, 3}));
  EXPECT_THAT([&] { influence.scores(); }, ::testing::ThrowsMessage<Error>(HasSubstr("not finite")));
  at::Tensor weight = at::ones({5, 4}, at::kDouble);
  weight[0][1] = NAN;
  EXPECT_THAT(
      [&] {
        scores_of(IndependentChannelContribution(), weight, {at::ones({1, 2, 4})});
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("weights are not finite")));
}

// Alone, the second channel matters less than the third; but the third compensates the first, and so is removed before
// both.
TEST(IterativeChannelContribution, AccountsForChannelsThatCompensateEachOther) {
  const at::Tensor weight = at::tensor({3.0, 4.0, -5.0}, at::kDouble).view({1, 3});
  const at::Tensor input = at::ones({1, 4, 3}, at::kDouble);
  EXPECT_THAT(
      numbers(scores_of(IterativeChannelContribution(3, 3), weight, {input, input, input})), ElementsAre(0, 2, 1));
  EXPECT_THAT(numbers(scores_of(IterativeChannelContribution(3, 1), weight, {input})), ElementsAre(0, 1, 2));
}

class IndependentHooks : public ::testing::Test {
 protected:
  IndependentHooks() { at::manual_seed(7); }
  at::Tensor input = at::randn({6, 5, 8}, at::kDouble);
  at::Tensor weight = at::randn({3, 8}, at::kDouble);
};

TEST_F(IndependentHooks, EqualTheirFormulas) {
  const at::Tensor rows = input.view({30, 8});
  expect_near(
      scores_of(IndependentChannelContribution(), weight, {input}), rows.abs().mean(0) * weight.square().sum(0).sqrt());
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < 2; ++head) {
    const at::Tensor part = rows.narrow(1, 4 * head, 4).matmul(weight.narrow(1, 4 * head, 4).t());
    heads.push_back(part.square().sum(1).sqrt().mean());
  }
  expect_near(scores_of(IndependentKvHeadContribution(2), weight, {input}), at::stack(heads));
  expect_near(scores_of(L2Norm(), weight, {input}), input.abs().mean(1).square().sum(0).sqrt());
}

template <class MakeHook>
void expect_no_change_by_batches_and_padding(const MakeHook& make, const at::Tensor& input, const at::Tensor& weight) {
  const auto whole = make();
  whole->accumulate(input, weight);
  const auto cut = make();
  for (const auto& part : input.split_with_sizes({1, 3, 2}, 0)) {
    cut->accumulate(part, weight);
  }
  expect_near(cut->scores(), whole->scores());

  // Padded positions contain garbage, and one batch has nothing else.
  const at::Tensor wide = at::full({7, 9, 8}, 1e6, at::kDouble);
  wide.narrow(0, 0, 6).narrow(1, 0, 5).copy_(input);
  const at::Tensor counted = at::zeros({7, 9}, at::kBool);
  counted.narrow(0, 0, 6).narrow(1, 0, 5).fill_(true);
  const auto padded = make();
  padded->accumulate(wide, weight, at::zeros({7, 9}, at::kBool));
  EXPECT_THROW(padded->scores(), Error);
  padded->accumulate(wide, weight, counted);
  expect_near(padded->scores(), whole->scores());
}

TEST_F(IndependentHooks, DoNotDependOnBatchingAndPadding) {
  expect_no_change_by_batches_and_padding(
      [] { return std::make_unique<IndependentChannelContribution>(); }, input, weight);
  expect_no_change_by_batches_and_padding(
      [] { return std::make_unique<IndependentKvHeadContribution>(4); }, input, weight);
  expect_no_change_by_batches_and_padding([] { return std::make_unique<L2Norm>(); }, input, weight);
}

TEST(BlockInfluence, IsOneMinusTheCosineSimilarityOfTheResidualStream) {
  const at::Tensor before = at::tensor({1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 9.0, 9.0}, at::kDouble).view({2, 2, 2});
  const at::Tensor after = at::tensor({5.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0, 2.0}, at::kDouble).view({2, 2, 2});
  const at::Tensor counted = at::tensor({1, 1, 1, 0}, at::kLong).to(at::kBool).view({2, 2});
  BlockInfluence influence;
  influence.accumulate(before, after, counted);
  // Same direction: 0; right angle: 1; opposite direction: 2.
  EXPECT_THAT(numbers(influence.scores()), ElementsAre(::testing::DoubleNear(1, 1e-15)));
}

}  // namespace
}  // namespace lehr::prune

// One step of a model with known gradients: sums, averages, clipping, and the update by the optimizer.
#include "lehr/train/step.h"

#include <gtest/gtest.h>

#include <set>

#include "lehr/optim/build_optimizer.h"
#include "test/train/probe_model.h"

namespace lehr::train {
namespace {

using testing::DropoutModel;
using testing::LinearLossModel;
using testing::ProbeTask;

constexpr double kRate = 0.5;

// Plain SGD: a step changes the weight by -kRate * lr_factor * gradient / divisor.
std::unique_ptr<optim::Optimizer> sgd(const nn::Model& model) {
  optim::OptimizerContext context;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    context.parameters.push_back({.name = name, .shape = parameter->shape()});
  }
  return optim::build_optimizer({.name = optim::OptimizerKind::sgd, .lr = kRate}, context);
}

std::unique_ptr<LinearLossModel> model_with(const at::Tensor& weight) {
  auto model = std::make_unique<LinearLossModel>(weight.size(0));
  nn::materialize(*model, at::kCPU, weight.scalar_type());
  model->set_weight(weight);
  return model;
}

// Two sequences of two tokens. The first one has one label, the second one has two.
Batch batch_with_unequal_labels() {
  return {
      {"tokens", at::tensor({3., 0., 50., 70., 1., 2., 2., 4.}, at::kDouble).view({2, 2, 2})},
      {"labels", at::tensor({1, -100, 1, 1}, at::kLong).view({2, 2})}};
}

struct Stepped {
  StepResult result;
  at::Tensor change;  // of the weight
};

Stepped step_once(
    const Batch& batch, const at::Tensor& weight, const TrainStep::Options& options, double lr_factor = 1) {
  const auto model = model_with(weight);
  const auto optimizer = sgd(*model);
  const ProbeTask task;
  TrainStep step(*model, task, *optimizer, options);
  Stepped stepped{.result = step.run(batch, /*first_row=*/0, /*step=*/1, lr_factor), .change = {}};
  EXPECT_TRUE(stepped.result.updated);
  stepped.change = (model->weight()->value().detach() - weight);
  return stepped;
}

void expect_near(const at::Tensor& found, const at::Tensor& wanted) {
  EXPECT_TRUE(at::allclose(found, wanted, /*rtol=*/1e-14, /*atol=*/1e-14)) << found << " instead of " << wanted;
}

const TrainStep::Options kOneByOne{.local_batch_size = 1, .compute = at::kDouble};

// The losses with weight (1, 2) are 3; 5 and 10. Their mean is 6; the mean of the means of micro-batches would be 5.25.
TEST(TrainStep, AveragesOverAllLabelsOfTheStepNotOverMicrobatches) {
  const at::Tensor weight = at::tensor({1., 2.}, at::kDouble);
  for (const int64_t size : {1, 2}) {
    const auto [result, change] =
        step_once(batch_with_unequal_labels(), weight, {.local_batch_size = size, .compute = at::kDouble});
    EXPECT_EQ(result.work.valid, 3);
    EXPECT_DOUBLE_EQ(result.loss, 6);
    // The sum of the tokens with labels, divided by their number.
    expect_near(change, -kRate * at::tensor({6. / 3, 6. / 3}, at::kDouble));
  }
}

// Counts the labelled tokens with a loss above four.
class CountingTask : public ProbeTask {
 public:
  std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return {{"above_four", outputs.logps.gt(4).logical_and(batch.at("labels").ne(nn::kIgnoreIndex)).sum()}};
  }
};

// Of the labelled losses 3; 5 and 10, two are above four; the one without a label is too, and does not count.
TEST(TrainStep, MetricsAreMeansOverTheLabelsOfTheStep) {
  for (const int64_t size : {1, 2}) {
    const auto model = model_with(at::tensor({1., 2.}, at::kDouble));
    const auto optimizer = sgd(*model);
    const CountingTask task;
    TrainStep step(*model, task, *optimizer, {.local_batch_size = size, .compute = at::kDouble});
    const StepResult result = step.run(batch_with_unequal_labels(), /*first_row=*/0, /*step=*/1, /*lr_factor=*/1);
    EXPECT_DOUBLE_EQ(result.metrics.at("above_four"), 2.0 / 3);
  }
}

TEST(TrainStep, AddsTheGradientsOfAllMicrobatches) {
  const int64_t count = 5;
  const Batch batch{
      {"tokens", at::eye(count, at::kDouble).view({count, 1, count})}, {"labels", at::ones({count, 1}, at::kLong)}};
  const auto change = step_once(batch, at::zeros({count}, at::kDouble), kOneByOne).change;
  // Each micro-batch has a gradient in a different element.
  expect_near(change, at::full({count}, -kRate / static_cast<double>(count), at::kDouble));
}

// 257 is not a bfloat16 number, and 256 + 1 in bfloat16 is 256.
TEST(TrainStep, AccumulatesGradientsInTheParametersDtype) {
  const Batch batch{{"tokens", at::tensor({512., 2.}).view({2, 1, 1})}, {"labels", at::ones({2, 1}, at::kLong)}};
  const auto change = step_once(batch, at::zeros({1}), {.local_batch_size = 1, .compute = at::kBFloat16}).change;
  EXPECT_EQ(change.item<double>(), -kRate * 257);
}

TEST(TrainStep, MultipliesTheLearningRateByTheFactorOfTheSchedule) {
  const at::Tensor weight = at::tensor({1., 2.}, at::kDouble);
  for (const double factor : {0., 0.25, 1., 3.}) {
    const auto change = step_once(batch_with_unequal_labels(), weight, kOneByOne, factor).change;
    expect_near(change, at::full({2}, -kRate * factor * 2, at::kDouble));
  }
}

// The gradient is (3, 4), of norm 5.
TEST(TrainStep, ClipsAGradientWhoseNormExceedsTheMaximum) {
  const Batch batch{
      {"tokens", at::tensor({6., 0., 0., 8.}, at::kDouble).view({2, 1, 2})}, {"labels", at::ones({2, 1}, at::kLong)}};
  const at::Tensor gradient = at::tensor({3., 4.}, at::kDouble);
  for (const auto& [max_norm, scale] :
       {std::pair(0., 1.),                 // no clipping
        std::pair(0.1, 0.1 / (5 + 1e-6)),  // the epsilon of torch.nn.utils.clip_grad_norm_
        std::pair(2., 2 / (5 + 1e-6)),
        std::pair(10., 1.)}) {
    const auto [result, change] = step_once(
        batch, at::zeros({2}, at::kDouble), {.local_batch_size = 1, .max_norm = max_norm, .compute = at::kDouble});
    EXPECT_DOUBLE_EQ(result.grad_norm, 5) << "before clipping";
    expect_near(change, -kRate * scale * gradient);
  }
}

// The scores of four sequences of ones in each of these steps.
std::vector<double> scores_of(const std::vector<int64_t>& steps, int64_t local_batch_size) {
  constexpr int64_t kWidth = 64;  // two masks of 64 elements agree with a probability of 2^-64
  DropoutModel model(kWidth);
  nn::materialize(model, at::kCPU, at::kDouble);
  model.reset_parameters({.seed = 1});
  const auto optimizer = sgd(model);
  const ProbeTask task;
  TrainStep step(model, task, *optimizer, {.local_batch_size = local_batch_size, .compute = at::kDouble, .seed = 7});
  const Batch batch{{"tokens", at::ones({4, 1, kWidth}, at::kDouble)}, {"labels", at::ones({4, 1}, at::kLong)}};
  for (const int64_t number : steps) {
    step.run(batch, /*first_row=*/0, number, /*lr_factor=*/0);
  }
  return task.scores;
}

TEST(TrainStep, DrawsADropoutMaskForEachStepAndSequence) {
  for (const int64_t size : {1, 2, 4}) {
    const auto scores = scores_of({1, 2, 3}, size);
    ASSERT_EQ(scores.size(), 12U);
    EXPECT_EQ(std::set(scores.begin(), scores.end()).size(), 12U) << "two sequences or steps have one mask";
  }
}

TEST(TrainStep, DropoutMasksDoNotDependOnTheMicrobatchSize) {
  const auto scores = scores_of({5, 6}, 4);
  EXPECT_EQ(scores_of({5, 6}, 1), scores);
  EXPECT_EQ(scores_of({5, 6}, 2), scores);
  EXPECT_EQ(scores_of({6}, 2), std::vector(scores.begin() + 4, scores.end())) << "whatever was drawn before";
}

}  // namespace
}  // namespace lehr::train

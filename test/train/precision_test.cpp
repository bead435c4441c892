// The dtypes of a run; master weights of a model whose backward is split into dgrad and wgrad.
#include "lehr/train/precision.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "lehr/nn/swiglu.h"
#include "lehr/ops/weight_gradients.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

TEST(Precision, RanksReduceGradientsInTheParametersDtypeByDefault) {
  TrainingConfig config;
  config.mixed_precision_param = "bfloat16";
  EXPECT_EQ(compute_type(config), at::kBFloat16);
  EXPECT_EQ(parameter_type(config), at::kFloat);
  EXPECT_EQ(reduce_type(config), at::kFloat);
  config.mixed_precision_reduce = "bfloat16";
  EXPECT_EQ(reduce_type(config), at::kBFloat16);
}

// In bfloat16 the reduction over ranks is rounded to three digits, which changes every number after the first loss.
TEST(Precision, ReductionOverRanksHasTheConfiguredDtype) {
  const auto norms_of = [](const Overrides& more) {
    const testing::Folder folder;
    Overrides overrides{
        {"training.mixed_precision_param", "bfloat16"},
        {"training.steps", "2"},
        {"checkpoint.enable", "false"},
        {"validation.enable", "false"}};
    const TrainConfig config = testing::tiny_run(folder.path(), testing::joined(overrides, more));
    testing::train_on({.dp_shard = 2}, config);
    return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "grad_norm").values;
  };
  const auto in_float32 = norms_of({{"training.mixed_precision_reduce", "float32"}});
  EXPECT_EQ(norms_of({}), in_float32);
  EXPECT_NE(norms_of({{"training.mixed_precision_reduce", "bfloat16"}})[0], in_float32[0]);
}

TEST(MixedPrecision, CollectsGradientsOfASplitBackward) {
  nn::SwiGLU block(4, 6);
  nn::materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 1});
  MixedPrecision precision(nn::named_parameters(*block), at::kBFloat16);
  at::manual_seed(1);
  const at::Tensor x = at::randn({3, 4}, at::kBFloat16);
  const auto take = [&] {
    precision.collect_gradients();
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : nn::named_parameters(*block)) {
      at::Tensor value = parameter->value();
      EXPECT_EQ(value.grad().scalar_type(), at::kFloat) << name;
      gradients.push_back(value.grad());
      value.mutable_grad().reset();
    }
    return gradients;
  };
  block(x).square().sum().backward();
  const auto expected = take();
  const auto wgrads = std::make_shared<ops::WeightGradients>();
  at::Tensor loss;
  {
    const ops::WeightGradients::Scope scope(wgrads);
    loss = block(x).square().sum();
  }
  wgrads->backward_input({loss});
  EXPECT_EQ(wgrads->size(), 3U);
  wgrads->backward_weight();
  const auto found = take();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

// One kernel for many parameters on a GPU.
TEST(MixedPrecision, CopiesAllParametersInOneCall) {
  nn::SwiGLU block(4, 6);
  nn::materialize(*block, at::kCPU, at::kFloat);
  block->reset_parameters({.seed = 1});
  MixedPrecision precision(nn::named_parameters(*block), at::kBFloat16);
  block(at::ones({3, 4}, at::kBFloat16)).sum().backward();
  thread_local int calls = 0;
  calls = 0;
  const auto counter = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        calls += std::string(function.name()) == "aten::_foreach_copy_" ? 1 : 0;
        return nullptr;
      }));
  precision.collect_gradients();
  precision.refresh();
  at::removeCallback(counter);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace lehr::train

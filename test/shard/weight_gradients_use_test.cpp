// Use of fully sharded models with split backward: memory, ranks with other data, errors.
#include <gmock/gmock.h>

#include <numeric>

#include "lehr/base/error.h"
#include "steps_in_halves.h"

namespace lehr::shard {
namespace {

using ops::WeightGradients;
using testing::HasSubstr;

TEST(FullyShardSplitBackward, WgradNeedsNoUnshardedWeights) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    for (const auto policy : {ReshardPolicy::always, ReshardPolicy::never}) {
      Stack model({});
      FullyShardOptions options = kDouble;
      options.reshard_after_forward = policy;
      FullySharded sharded = fully_shard(context, model, model.units(), options);
      nn::materialize(model, at::kCPU, at::kDouble);
      model.reset_parameters({.seed = 3});
      int64_t before = 0;
      step_in_halves(context, model, sharded, 0, kZeroBubble, [&](const Act& act) {
        if (act.what == 'W') {
          EXPECT_EQ(sharded.gathered_bytes(), before) << "nothing is gathered for products of activations";
        }
        before = sharded.gathered_bytes();
      });
      const auto units = sharded.unit_bytes();
      const int64_t all = std::accumulate(units.begin(), units.end(), int64_t{0});
      const int64_t largest = *std::max_element(units.begin(), units.end());
      if (policy == ReshardPolicy::always) {
        EXPECT_LE(sharded.gathered_bytes_peak(), 2 * largest);
      } else {
        EXPECT_LE(sharded.gathered_bytes_peak(), all + largest);
      }
    }
  });
}

// After every action, all units are unsharded.
TEST(FullyShardSplitBackward, KeepsUnitsUnshardedForAllMicrobatchesUnderThePolicyNever) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Stack model({});
    FullyShardOptions options = kDouble;
    options.reshard_after_forward = ReshardPolicy::never;
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    const Acts acts{{'F', 0}, {'B', 0}, {'F', 1}, {'B', 1}, {'F', 2}, {'B', 2}, {'F', 3}, {'I', 3}, {'W', 3}};
    step_in_halves(context, model, sharded, 0, acts, [&](const Act&) {
      const auto units = sharded.unit_bytes();
      EXPECT_EQ(sharded.gathered_bytes(), std::accumulate(units.begin(), units.end(), int64_t{0}));
    });
    EXPECT_EQ(sharded.gathered_bytes(), 0);
  });
}

// Uses its weight for positive inputs only, in a matmul and elsewhere: its gradients come from both dgrad and wgrad.
class SometimesImpl : public nn::Module {
 public:
  SometimesImpl() { inner = register_module("inner", nn::Linear(3, 3, nn::Init::normal(1))); }
  at::Tensor forward(const at::Tensor& x) {
    return x.sum().item<double>() > 0 ? inner(x).square() * inner->weight.square().sum() : x * 1;
  }
  nn::Linear inner{nullptr};
};
LEHR_MODULE(Sometimes);

TEST(FullyShardSplitBackward, RanksThatUseNoWeightOfAUnitTakePartInItsReduction) {
  struct Model : nn::Module {
    Model() : first(register_module("first", Sometimes())), second(register_module("second", Sometimes())) {}
    Sometimes first, second;
  };
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    const auto train = [&](bool in_halves) {
      Model model;
      FullySharded sharded =
          fully_shard(context, model, {{"first", {model.first.ptr()}}, {"second", {model.second.ptr()}}}, kDouble);
      nn::materialize(model, at::kCPU, at::kDouble);
      model.reset_parameters({.seed = 1});
      sharded.begin_step();
      const auto wgrads = std::make_shared<WeightGradients>();
      const double sign = context.rank() == 0 ? 2 : -2;
      at::Tensor loss;
      {
        const WeightGradients::Scope scope(wgrads);
        loss = model.second(model.first(at::full({1, 3}, sign, at::kDouble))).sum();
      }
      if (in_halves) {
        wgrads->backward_input({loss});
        EXPECT_EQ(wgrads->size(), context.rank() == 0 ? 2U : 0U);
        wgrads->backward_weight();
      } else {
        loss.backward();
      }
      sharded.finish_backward();
      return std::vector<at::Tensor>{
          model.first->inner->own_parameter("weight")->value().grad(),
          model.second->inner->own_parameter("weight")->value().grad()};
    };
    const auto expected = train(false), found = train(true);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(found[i].defined());
      EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-12, 0));  // two sums in another order
      EXPECT_TRUE(expected[i].numel() == 0 || expected[i].abs().max().item<double>() > 0);
    }
  });
}

template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(FullyShardSplitBackward, RefusesToLoseGradients) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    const auto problem = [&](const Acts& acts) {
      const std::string text = problem_of([&] { step_in_halves(context, model, sharded, 0, acts); });
      sharded.reset();
      try {  // reports the work that the step left behind
        const WeightGradients::Scope scope(nullptr);
      } catch (const Error&) {
      }
      return text;
    };
    EXPECT_THAT(problem({{'F', 0}, {'I', 0}}), HasSubstr("finish_backward() while units wait for weight gradients"));
    // A wgrad from before reset().
    const auto wgrads = std::make_shared<WeightGradients>();
    const Rows rows = make_rows(2, 0);
    sharded.begin_step();
    at::Tensor loss;
    {
      const WeightGradients::Scope scope(wgrads);
      loss = model.loss(rows.ids, rows.labels);
    }
    wgrads->backward_input({loss});
    EXPECT_THAT(problem_of([&] { sharded.begin_step(); }), HasSubstr("begin_step() while units wait"));
    sharded.reset();
    EXPECT_THAT(problem_of([&] { wgrads->backward_weight(); }), HasSubstr("from before reset()"));
    sharded.reset();
    EXPECT_EQ(sharded.gathered_bytes(), 0);
  });
}

// Its gradients would come after the reduction over the ranks.
TEST(FullyShardSplitBackward, RefusesAMicrobatchAfterTheLastOne) {
  for (const bool checkpoint : {false, true}) {
    on_mesh({.data_parallel_replicate = 2}, [&](mesh::DistributedContext& context) {
      Stack model({.checkpoint = checkpoint});
      FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
      nn::materialize(model, at::kCPU, at::kDouble);
      model.reset_parameters({.seed = 3});
      const Rows rows = make_rows(2, 0);
      sharded.begin_step();
      model.loss(rows.ids, rows.labels).backward();
      EXPECT_THAT(
          problem_of([&] { model.loss(rows.ids, rows.labels).backward(); }),
          HasSubstr("call set_last_microbatch(false) before the first of them"));
      sharded.reset();
    });
  }
}

}  // namespace
}  // namespace lehr::shard

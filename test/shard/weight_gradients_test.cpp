// Fully sharded models whose backward comes in two halves, of several microbatches at once, equal one device.
#include "lehr/ops/weight_gradients.h"

#include <gmock/gmock.h>

#include <numeric>

#include "lehr/base/error.h"
#include "tiny_stack.h"

namespace lehr::shard {
namespace {

using ops::WeightGradients;
using testing::HasSubstr;

// "F0 I0 B1 W0": what to do with which microbatch.
struct Act {
  char what;
  size_t microbatch;
};
using Acts = std::vector<Act>;

const Acts kZeroBubble{
    {'F', 0},
    {'F', 1},
    {'I', 0},
    {'F', 2},
    {'I', 1},
    {'W', 0},
    {'F', 3},
    {'I', 2},
    {'W', 1},
    {'I', 3},
    {'W', 2},
    {'W', 3}};
// Whole and halved backwards, as in schedules that split where it helps only; the weights of all come last.
const Acts kMixed{{'F', 0}, {'B', 0}, {'F', 1}, {'F', 2}, {'I', 1}, {'F', 3}, {'B', 2}, {'I', 3}, {'W', 3}, {'W', 1}};
const Acts kOneForwardOneBackward{{'F', 0}, {'F', 1}, {'B', 0}, {'F', 2}, {'B', 1}, {'F', 3}, {'B', 2}, {'B', 3}};

constexpr size_t kMicrobatches = 4;

// One step on a rank, of four microbatches between one begin_step and one finish_backward. Gives the loss of all ranks.
double step_in_halves(
    mesh::DistributedContext& context,
    Stack& model,
    FullySharded& sharded,
    int64_t step,
    const Acts& acts,
    const std::function<void(const Act&)>& after = {}) {
  const int64_t mine = kRows / context.data_parallel_size();
  const int64_t rows = mine / static_cast<int64_t>(kMicrobatches);
  const Rows all = make_rows(kRows, step);
  clear_gradients(model);
  sharded.begin_step();
  sharded.set_last_microbatch(false);
  std::vector<std::shared_ptr<WeightGradients>> halves(kMicrobatches);
  std::vector<at::Tensor> losses(kMicrobatches);
  at::Tensor total = at::zeros({}, at::kDouble);
  size_t forwards = 0, waited = 0;
  for (const Act& act : acts) {
    const size_t i = act.microbatch;
    switch (act.what) {
      case 'F': {
        halves[i] = std::make_shared<WeightGradients>();
        const WeightGradients::Scope scope(halves[i]);
        const Rows part = rows_of(all, context.data_parallel_rank() * mine + static_cast<int64_t>(i) * rows, rows);
        losses[i] = model.loss(part.ids, part.labels) / (4 * kRows - 1);
        total += losses[i].detach();
        if (++forwards == kMicrobatches) {
          sharded.set_last_microbatch(true);
        }
        break;
      }
      case 'I':
        halves[i]->backward_input({losses[i]});
        losses[i].reset();
        waited += halves[i]->size();
        break;
      case 'W':
        halves[i]->backward_weight();
        break;
      default:
        losses[i].backward();
        losses[i].reset();
    }
    if (after) {
      after(act);
    }
  }
  sharded.finish_backward();
  const bool split = std::any_of(acts.begin(), acts.end(), [](const Act& act) { return act.what == 'I'; });
  EXPECT_EQ(waited > 0, split);
  context.world().all_reduce(total);
  return total.item<double>();
}

struct Case {
  mesh::DeviceMeshParameters mesh;
  StackOptions stack = {};
  ReshardPolicy policy = ReshardPolicy::all_but_last;
  const Acts* acts = &kZeroBubble;
  int64_t bucket_bytes = 25 << 20;
};

// Relative to the largest number of the whole tensor.
double difference(const at::Tensor& actual, const at::Tensor& whole, const Box& box) {
  const at::Tensor part = narrow_to(whole, box);
  const at::NoGradGuard no_grad;
  return part.numel() == 0 ? 0 : ((actual - part).abs().max() / whole.abs().max().clamp_min(1e-3)).item<double>();
}

void expect_equal_to_one_device(const Case& c, const Prepare& prepare = {}) {
  SCOPED_TRACE(c.mesh.describe());
  const Trained expected = train_on_one_device(c.stack, prepare);
  on_mesh(c.mesh, [&](mesh::DistributedContext& context) {
    Stack model(c.stack);
    if (prepare) {
      prepare(model);
    }
    FullyShardOptions options = kDouble;
    options.reshard_after_forward = c.policy;
    options.bucket_bytes = c.bucket_bytes;
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = step_in_halves(context, model, sharded, step, *c.acts);
      EXPECT_NEAR(loss, expected.losses[static_cast<size_t>(step)], kTolerance * loss) << step;
      update(model);
    }
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      const at::Tensor gradient = expected.gradients.at(name);
      ASSERT_EQ(parameter->value().grad().defined(), gradient.defined()) << name;
      EXPECT_LT(difference(parameter->value(), expected.values.at(name), parameter->box()), kTolerance) << name;
      if (gradient.defined()) {
        EXPECT_LT(difference(parameter->value().grad(), gradient, parameter->box()), kTolerance) << name;
      }
    }
  });
}

TEST(FullyShardInHalves, TrainsAsOneDeviceDoesOnEveryMesh) {
  const std::vector<mesh::DeviceMeshParameters> meshes{
      {},
      {.data_parallel_shard = 2},
      {.data_parallel_shard = 4},
      {.data_parallel_replicate = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2}};
  for (const auto& mesh : meshes) {
    for (const Acts* acts : {&kZeroBubble, &kMixed, &kOneForwardOneBackward}) {
      expect_equal_to_one_device({.mesh = mesh, .acts = acts});
    }
  }
}

TEST(FullyShardInHalves, TrainsAsOneDeviceDoesUnderEachPolicyWithAndWithoutCheckpointing) {
  for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always, ReshardPolicy::never}) {
    for (const bool checkpoint : {false, true}) {
      for (const Acts* acts : {&kZeroBubble, &kMixed}) {
        expect_equal_to_one_device(
            {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
             .stack = {.checkpoint = checkpoint},
             .policy = policy,
             .acts = acts,
             .bucket_bytes = 100});
      }
    }
  }
}

TEST(FullyShardInHalves, TakesTiedWeightsAndUnitsThatAreLeftOutOrUsedTwice) {
  for (const bool checkpoint : {false, true}) {
    expect_equal_to_one_device({.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint, .tied = true}});
    const std::vector<std::vector<size_t>> orders{{0, 2}, {0, 1, 1, 2}, {2, 1, 0}};
    for (const auto& order : orders) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
           .stack = {.checkpoint = checkpoint, .order = order},
           .bucket_bytes = 100});
    }
  }
}

TEST(FullyShardInHalves, FrozenParametersWaitForNothing) {
  const auto freeze = [](torch::nn::Module& module) {
    for (const auto& [name, parameter] : nn::named_parameters(module)) {
      parameter->set_trainable(false);
    }
  };
  const std::vector<Prepare> choices{
      [&](Stack& model) { freeze(*model.layers[1]); },
      [&](Stack& model) { freeze(*model.layers[1]->mlp); },
      [&](Stack& model) {  // units without any product that waits: the norm and a bias
        freeze(*model.layers[1]->mlp);
        model.layers[1]->expert->own_parameter("weight")->set_trainable(false);
      }};
  for (const auto& choice : choices) {
    for (const bool checkpoint : {false, true}) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint}, .policy = ReshardPolicy::always},
          choice);
    }
  }
}

TEST(FullyShardInHalves, NeedsNoWeightsForTheSecondHalf) {
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

// Counts how often a module is gathered.
TEST(FullyShardInHalves, KeepsUnitsForAllMicrobatchesIfThePolicyNeverReleasesThem) {
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

// Uses its weight for positive inputs only.
class SometimesImpl : public nn::Module {
 public:
  SometimesImpl() { inner = register_module("inner", nn::Linear(3, 3, nn::Init::normal(1))); }
  at::Tensor forward(const at::Tensor& x) { return x.sum().item<double>() > 0 ? inner(x).square() : x * 1; }
  nn::Linear inner{nullptr};
};
LEHR_MODULE(Sometimes);

TEST(FullyShardInHalves, RanksWhoseDataUsesNoWeightOfAUnitTakePart) {
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
      const auto halves = std::make_shared<WeightGradients>();
      const double sign = context.rank() == 0 ? 2 : -2;
      at::Tensor loss;
      {
        const WeightGradients::Scope scope(halves);
        loss = model.second(model.first(at::full({1, 3}, sign, at::kDouble))).sum();
      }
      if (in_halves) {
        halves->backward_input({loss});
        EXPECT_EQ(halves->size(), context.rank() == 0 ? 2U : 0U);
        halves->backward_weight();
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
      EXPECT_TRUE(at::equal(found[i], expected[i]));
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

TEST(FullyShardInHalves, RefusesToLoseGradients) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    const auto problem = [&](const Acts& acts) {
      const std::string text = problem_of([&] { step_in_halves(context, model, sharded, 0, acts); });
      sharded.reset();
      try {  // notices what the step left behind
        const WeightGradients::Scope scope(nullptr);
      } catch (const Error&) {
      }
      return text;
    };
    EXPECT_THAT(problem({{'F', 0}, {'I', 0}}), HasSubstr("finish_backward() while units wait for weight gradients"));
    // Each microbatch as if it were the last one.
    const Rows rows = make_rows(2, 0);
    sharded.begin_step();
    model.loss(rows.ids, rows.labels).backward();
    EXPECT_THAT(
        problem_of([&] { model.loss(rows.ids, rows.labels).backward(); }),
        HasSubstr("call set_last_microbatch(false) before the first of them"));
    sharded.reset();
    // A second half from before reset().
    const auto halves = std::make_shared<WeightGradients>();
    sharded.begin_step();
    at::Tensor loss;
    {
      const WeightGradients::Scope scope(halves);
      loss = model.loss(rows.ids, rows.labels);
    }
    halves->backward_input({loss});
    EXPECT_THAT(problem_of([&] { sharded.begin_step(); }), HasSubstr("begin_step() while units wait"));
    sharded.reset();
    EXPECT_THAT(problem_of([&] { halves->backward_weight(); }), HasSubstr("from before reset()"));
    sharded.reset();
    EXPECT_EQ(sharded.gathered_bytes(), 0);
  });
}

}  // namespace
}  // namespace lehr::shard

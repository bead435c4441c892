// A fully sharded model trains as on one device, and holds no more memory than it says.
#include "lehr/shard/fully_shard.h"

#include <gmock/gmock.h>

#include <numeric>

#include "lehr/base/error.h"
#include "tiny_stack.h"

namespace lehr::shard {
namespace {

using testing::HasSubstr;

constexpr double kTolerance = 1e-12;  // relative, in float64: only the order of sums differs

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) {
    return 0;
  }
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item<double>();
}

struct Case {
  mesh::DeviceMeshParameters mesh;
  StackOptions stack = {};
  ReshardPolicy policy = ReshardPolicy::all_but_last;
  int64_t microbatches = 2;
  int64_t bucket_bytes = 25 << 20;
};

const FullyShardOptions kDouble{.compute = at::kDouble, .reduce = at::kDouble};

// One step on a rank: the gradients of its rows, all summed. Gives the loss of all ranks.
double step_on_rank(
    mesh::DistributedContext& context, Stack& model, FullySharded& sharded, int64_t step, int64_t microbatches) {
  const int64_t mine = kRows / context.data_parallel_size();
  const int64_t rows = mine / microbatches;
  const Rows all = make_rows(kRows, step);
  clear_gradients(model);
  sharded.begin_step();
  at::Tensor total = at::zeros({}, at::kDouble);
  for (int64_t i = 0; i < microbatches; ++i) {
    const Rows part = rows_of(all, context.data_parallel_rank() * mine + i * rows, rows);
    sharded.set_last_microbatch(i + 1 == microbatches);
    const at::Tensor loss = model.loss(part.ids, part.labels) / (4 * kRows - 1);
    loss.backward();
    sharded.finish_backward();
    total += loss.detach();
  }
  context.world().all_reduce(total);
  return total.item<double>();
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
      const double loss = step_on_rank(context, model, sharded, step, c.microbatches);
      EXPECT_NEAR(loss, expected.losses[static_cast<size_t>(step)], kTolerance * loss) << step;
      update(model);
    }
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      const at::Tensor gradient = expected.gradients.at(name);
      ASSERT_EQ(parameter->value().grad().defined(), gradient.defined()) << name;
      EXPECT_LT(difference(parameter->value(), narrow_to(expected.values.at(name), parameter->box())), kTolerance)
          << name;
      if (gradient.defined()) {
        EXPECT_LT(difference(parameter->value().grad(), narrow_to(gradient, parameter->box())), kTolerance) << name;
      }
    }
  });
}

std::vector<mesh::DeviceMeshParameters> meshes() {
  return {
      {.data_parallel_shard = 2},
      {.data_parallel_shard = 4},
      {.data_parallel_replicate = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 4},
      {}};
}

TEST(FullyShard, TrainsAsOneDeviceDoesOnEveryMesh) {
  for (const auto& mesh : meshes()) {
    for (const int64_t microbatches : {1, 2}) {
      expect_equal_to_one_device({.mesh = mesh, .microbatches = microbatches});
    }
  }
}

TEST(FullyShard, TrainsAsOneDeviceDoesUnderEachPolicyWithAndWithoutCheckpointing) {
  for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always, ReshardPolicy::never}) {
    for (const bool checkpoint : {false, true}) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
           .stack = {.checkpoint = checkpoint},
           .policy = policy});
    }
  }
}

TEST(FullyShard, TiedWeightsGetTheGradientsOfBothPlaces) {
  for (const bool checkpoint : {false, true}) {
    expect_equal_to_one_device({.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint, .tied = true}});
    expect_equal_to_one_device(
        {.mesh = {.data_parallel_replicate = 2}, .stack = {.checkpoint = checkpoint, .tied = true}});
  }
}

TEST(FullyShard, GradientsTravelInBucketsOfAnySize) {
  for (const int64_t bytes : {1, 100, 1000}) {
    expect_equal_to_one_device(
        {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}, .bucket_bytes = bytes});
  }
}

TEST(FullyShard, FrozenParametersAreGatheredAndGetNoGradient) {
  const auto freeze = [](torch::nn::Module& module) {
    for (const auto& [name, parameter] : nn::named_parameters(module)) {
      parameter->set_trainable(false);
    }
  };
  const std::vector<Prepare> choices{
      [&](Stack& model) { freeze(*model.layers[1]); },       // a whole unit in the middle
      [&](Stack& model) { freeze(*model.layers[1]->mlp); },  // a part of one
      [&](Stack& model) {                                    // all but the last layer
        freeze(model);
        for (const auto& [name, parameter] : nn::named_parameters(*model.layers[2])) {
          parameter->set_trainable(true);
        }
      }};
  for (const auto& choice : choices) {
    for (const bool checkpoint : {false, true}) {
      for (const auto policy : {ReshardPolicy::always, ReshardPolicy::never}) {
        expect_equal_to_one_device(
            {.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint}, .policy = policy}, choice);
      }
    }
  }
}

TEST(FullyShard, StartsFromTheSameBitsOnEveryMesh) {
  Stack whole({});
  nn::materialize(whole, at::kCPU, at::kFloat);
  whole.reset_parameters({.seed = 9});
  const auto expected = nn::named_parameters(whole);
  on_mesh({.data_parallel_replicate = 2, .data_parallel_shard = 4}, [&](mesh::DistributedContext& context) {
    Stack model({});
    const FullySharded sharded = fully_shard(context, model, model.units(), {});
    nn::materialize(model, at::kCPU, at::kFloat);
    model.reset_parameters({.seed = 9});
    const auto parameters = nn::named_parameters(model);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& parameter = *parameters[i].parameter;
      EXPECT_TRUE(at::equal(parameter.value(), narrow_to(expected[i].parameter->value(), parameter.box())));
      EXPECT_EQ(parameter.value().size(0), chunk({0, parameter.shape()[0]}, context.index("fsdp"), 4).size());
    }
  });
}

// In bfloat16, against float32 weights on one rank with the same casts. Each rank rounds its own gradients to bfloat16
// before they are summed in float32, where one device rounds the sum: two roundings of 2^-9 relative to summands that
// may cancel, hence a few percent of the largest gradient. Equal shares of a wrong sum would be off by 100 percent.
TEST(FullyShard, ComputesInBfloat16WithFloat32Weights) {
  const FullyShardOptions mixed{.compute = at::kBFloat16, .reduce = at::kFloat};
  std::map<std::string, at::Tensor> expected;
  double expected_loss = 0;
  const auto run = [&](mesh::DistributedContext& context, const auto& look) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), mixed);
    nn::materialize(model, at::kCPU, at::kFloat);
    model.reset_parameters({.seed = 3});
    const double loss = step_on_rank(context, model, sharded, 0, 2);
    EXPECT_EQ(model.layers[0]->mlp->up_proj->weight.scalar_type(), at::kBFloat16);
    look(model, loss);
  };
  on_mesh({}, [&](mesh::DistributedContext& context) {
    run(context, [&](Stack& model, double loss) {
      expected_loss = loss;
      for (const auto& [name, parameter] : nn::named_parameters(model)) {
        expected[name] = parameter->value().grad();
      }
    });
  });
  on_mesh({.data_parallel_shard = 4}, [&](mesh::DistributedContext& context) {
    run(context, [&](Stack& model, double loss) {
      EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);  // forward is the same but for the sum over tokens
      for (const auto& [name, parameter] : nn::named_parameters(model)) {
        const at::Tensor gradient = parameter->value().grad();
        ASSERT_EQ(gradient.defined(), expected[name].defined()) << name;
        if (gradient.defined() && gradient.numel() > 0) {
          EXPECT_EQ(gradient.scalar_type(), at::kFloat);
          const double largest = expected[name].abs().max().item<double>();
          EXPECT_LT((gradient - narrow_to(expected[name], parameter->box())).abs().max().item<double>(), 0.05 * largest)
              << name;
        }
      }
    });
  });
}

TEST(FullyShard, OneRankReadsItsOwnValuesWithoutACopy) {
  on_mesh({}, [](mesh::DistributedContext& context) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    step_on_rank(context, model, sharded, 0, 2);
    EXPECT_EQ(sharded.gathered_bytes_peak(), 0);
  });
}

// Layers of equal sizes that divide: no padding but the alignment that unit_bytes() counts.
TEST(FullyShard, HoldsTwoUnitsAtMostBesideThoseThatThePolicyKeeps) {
  for (const bool checkpoint : {false, true}) {
    for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always, ReshardPolicy::never}) {
      on_mesh({.data_parallel_shard = 2}, [&](mesh::DistributedContext& context) {
        Stack model({.layers = 6, .checkpoint = checkpoint});
        FullyShardOptions options = kDouble;
        options.reshard_after_forward = policy;
        FullySharded sharded = fully_shard(context, model, model.units(), options);
        nn::materialize(model, at::kCPU, at::kDouble);
        model.reset_parameters({.seed = 3});
        step_on_rank(context, model, sharded, 0, 2);
        sharded.reset_peak();
        step_on_rank(context, model, sharded, 1, 2);
        const auto units = sharded.unit_bytes();
        const int64_t all = std::accumulate(units.begin(), units.end(), int64_t{0});
        const int64_t largest = *std::max_element(units.begin(), units.end());
        ASSERT_GT(largest, 0);
        ASSERT_GT(all, 7 * largest * 9 / 10);
        if (policy == ReshardPolicy::never) {
          EXPECT_LE(sharded.gathered_bytes_peak(), all + largest);  // and the buffer of the one that comes
          EXPECT_GE(sharded.gathered_bytes_peak(), all);
        } else {
          EXPECT_LE(sharded.gathered_bytes_peak(), 2 * largest);
          EXPECT_GT(sharded.gathered_bytes_peak(), largest);  // one ahead
        }
      });
    }
  }
}

TEST(FullyShard, PassesWithoutGradientsNeedNoStepAndSeeNewValues) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    const Rows rows = make_rows(2, 0);
    const at::NoGradGuard no_grad;
    const double before = model.loss(rows.ids, rows.labels).item<double>();
    EXPECT_EQ(model.loss(rows.ids, rows.labels).item<double>(), before);
    model.reset_parameters({.seed = 4});
    sharded.reset();
    EXPECT_NE(model.loss(rows.ids, rows.labels).item<double>(), before);
    sharded.hold();
    EXPECT_EQ(model.head->logits(at::ones({1, 2, kHidden}, at::kDouble)).size(-1), kVocabulary);
    model.loss(rows.ids, rows.labels);
    EXPECT_EQ(model.head->logits(at::ones({1, 2, kHidden}, at::kDouble)).size(-1), kVocabulary);
    sharded.reset();
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    // Between calls there are shapes, and no numbers.
    EXPECT_TRUE(model.head->logits(at::ones({1, 2, kHidden}, at::kDouble)).is_meta());
  });
}

TEST(FullyShard, GoesOnAfterAnException) {
  const Trained expected = train_on_one_device({});
  on_mesh({.data_parallel_shard = 2}, [&](mesh::DistributedContext& context) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    sharded.begin_step();
    at::Tensor kept;
    try {  // on all ranks alike
      kept = model.loss(at::full({2, 4}, 1, at::kLong), at::full({2, 3}, 1, at::kLong));
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("labels"));
    }
    kept = model.loss(at::full({2, 4}, 1, at::kLong), at::full({2, 4}, 1, at::kLong));
    sharded.reset();
    try {
      kept.backward();
      FAIL();
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("from before reset()"));
    }
    sharded.reset();
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    EXPECT_NEAR(step_on_rank(context, model, sharded, 0, 2), expected.losses[0], kTolerance * expected.losses[0]);
  });
}

// Two experts a rank on two ranks that hold the same ones, and one: cut along dimension 0, and 1.
class ExpertsImpl : public nn::Module {
 public:
  explicit ExpertsImpl(int64_t experts) { declare_parameter("weight", weight, {experts, 5, 2}, nn::Init::normal(1)); }
  at::Tensor forward(const at::Tensor& x) { return x.sum() * weight; }
  at::Tensor weight;
};
LEHR_MODULE(Experts);

TEST(FullyShard, ExpertsAreCutOverTheRanksThatHoldTheSameOnes) {
  for (const int64_t experts : {4, 2}) {
    on_mesh({.data_parallel_shard = 4, .expert_parallel = 2}, [&](mesh::DistributedContext& context) {
      Experts model(experts);
      nn::Parameter& weight = *model->own_parameter("weight");
      weight.lay_out("ep", Placement::shard(0), context.index("ep"), 2);
      FullySharded sharded = fully_shard(context, *model, {{"experts", {model.ptr()}}}, kDouble);
      EXPECT_EQ(*weight.layout().find("ep_shard"), Placement::shard(experts == 4 ? 0 : 1));
      nn::materialize(*model, at::kCPU, at::kDouble);
      model->reset_parameters({.seed = 3});
      sharded.begin_step();
      const at::Tensor x = at::full({1}, 1.0 + static_cast<double>(context.rank()), at::kDouble);
      const at::Tensor output = model(x);
      EXPECT_EQ(output.sizes(), (std::vector<int64_t>{experts / 2, 5, 2}));
      output.sum().backward();
      sharded.finish_backward();
      // Ranks 0 and 2 hold the same experts, and 1 and 3 do.
      const double expected = context.index("ep") == 0 ? 1.0 + 3.0 : 2.0 + 4.0;
      EXPECT_TRUE(at::equal(weight.value().grad(), at::full_like(weight.value(), expected)));
    });
  }
}

template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

TEST(FullyShard, RefusesUnitsThatDoNotFitTheModel) {
  on_mesh({}, [](mesh::DistributedContext& context) {
    const auto problem = [&](const StackOptions& options, const auto& change) {
      Stack model(options);
      auto units = model.units();
      change(model, units);
      return problem_of([&] { fully_shard(context, model, units, {}); });
    };
    EXPECT_THAT(
        problem({}, [](Stack&, auto& units) { units.pop_back(); }),
        HasSubstr("parameter norm.weight: is in none of the fully sharded units"));
    EXPECT_THAT(
        problem(
            {},
            [](Stack& model, auto& units) {
              units.push_back({"mlp", {model.layers[0]->mlp.ptr()}});
            }),
        HasSubstr("unit mlp: parameter gate_proj.weight is in unit layer0 already"));
    EXPECT_THAT(
        problem(
            {.tied = true},
            [](Stack& model, auto& units) {
              units[0].modules.pop_back();
              units.back().modules.push_back(model.head.ptr());
            }),
        HasSubstr("unit norm: reads a weight of unit embeddings and head; put tied weights into one unit"));
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    EXPECT_THAT(
        problem_of([&] {
          model.embed(at::zeros({1, 1}, at::kLong));
        }),
        HasSubstr("call nn::materialize first"));
    nn::materialize(model, at::kCPU, at::kDouble);
    EXPECT_THAT(problem_of([&] { model.embed(at::zeros({1, 1}, at::kLong)); }), HasSubstr("call begin_step() first"));
    EXPECT_THAT(problem_of([&] { sharded.finish_backward(); }), HasSubstr("call begin_step() first"));
  });
}

}  // namespace
}  // namespace lehr::shard

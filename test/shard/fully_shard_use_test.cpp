// Memory and use of a fully sharded model: passes without gradients, exceptions, invalid units.
#include <gmock/gmock.h>

#include <numeric>

#include "lehr/base/error.h"
#include "lehr/mesh/fake_transport.h"
#include "lehr/shard/fully_shard.h"
#include "test/base/error_of.h"
#include "tiny_stack.h"

namespace lehr::shard {
namespace {

using testing::HasSubstr;

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

// Layers of equal sizes that divide evenly: no padding except the alignment that unit_bytes() counts.
TEST(FullyShard, HoldsAtMostTwoUnitsBesidesThoseThatThePolicyKeeps) {
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
          EXPECT_LE(sharded.gathered_bytes_peak(), all + largest);  // and the buffer of the prefetched unit
          EXPECT_GE(sharded.gathered_bytes_peak(), all);
        } else {
          EXPECT_LE(sharded.gathered_bytes_peak(), 2 * largest);
          EXPECT_GT(sharded.gathered_bytes_peak(), largest);  // one unit is prefetched
        }
      });
    }
  }
}

// Records the unsharded bytes while a module runs.
class Watch : public nn::CallHook {
 public:
  explicit Watch(const FullySharded& sharded) : sharded_(sharded) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    seen.push_back(sharded_.gathered_bytes());
    return forward(input);
  }
  std::vector<int64_t> seen;

 private:
  const FullySharded& sharded_;
};

TEST(FullyShard, PrefetchesTheNextUnitInForwardAndBackward) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Stack model({.layers = 6, .checkpoint = true});
    FullySharded sharded = fully_shard(context, model, model.units(), kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    step_on_rank(context, model, sharded, 0, 1);  // learns the order of backward
    const auto watch = std::make_shared<Watch>(sharded);
    model.layers[2]->mlp->add_call_hook(watch);
    step_on_rank(context, model, sharded, 1, 1);
    ASSERT_EQ(watch->seen.size(), 2U);  // forward, and its recomputation in backward
    for (const int64_t bytes : watch->seen) {
      EXPECT_GT(bytes, sharded.unit_bytes()[3]);
    }
  });
}

// As with adapters, whose embeddings, norm and head are frozen.
TEST(FullyShard, BackwardGathersAFrozenUnitOfTwoModulesOnce) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Stack model({.layers = 1});
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      parameter->set_trainable(name.starts_with("layer0."));
    }
    FullyShardOptions options = kDouble;
    options.reshard_after_forward = ReshardPolicy::always;
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    const Rows rows = make_rows(2, 0);
    sharded.begin_step();
    const at::Tensor x = model.norm(model.layers[0](model.embed(rows.ids), rows.ids == kSpecial));
    int64_t between = -1;  // bytes after backward of the head and before that of the norm, in the same unit
    x.register_hook([&](const at::Tensor&) { between = sharded.gathered_bytes(); });
    model.head(x, rows.labels).sum().backward();
    EXPECT_EQ(between, sharded.unit_bytes().back());
    sharded.finish_backward();
    EXPECT_EQ(sharded.gathered_bytes(), 0);
  });
}

// Units of the same size, which need no padding.
struct Chain : nn::Module {
  Chain() {
    for (int i = 0; i < 6; ++i) {
      links.push_back(register_module(std::to_string(i), nn::Linear(32, 32)));
    }
  }
  std::vector<nn::Linear> links;
};

// Each link is a unit, with initial values.
FullySharded by_link(mesh::DistributedContext& context, Chain& model, const FullyShardOptions& options) {
  std::vector<UnitModules> units;
  for (auto& link : model.links) {
    units.push_back({"link", {link.ptr()}});
  }
  FullySharded sharded = fully_shard(context, model, units, options);
  nn::materialize(model, at::kCPU, at::kDouble);
  model.reset_parameters();
  return sharded;
}

// Forward through the links in this order, and backward.
void take_step(FullySharded& sharded, Chain& model, const std::vector<size_t>& order) {
  sharded.begin_step();
  at::Tensor x = at::ones({1, 32}, at::kDouble);
  for (const size_t i : order) {
    x = model.links[i](x);
  }
  x.sum().backward();
  sharded.finish_backward();
}

TEST(FullyShard, HoldsExactlyTwoEqualUnitsEvenIfAPrefetchedUnitIsUnused) {
  constexpr int64_t kBytes = 32 * 32 * 8;
  const auto peak = [](ReshardPolicy policy, const std::vector<size_t>& order) {
    int64_t bytes = 0;
    on_mesh({.data_parallel_shard = 2}, [&](mesh::DistributedContext& context) {
      Chain model;
      FullyShardOptions options = kDouble;
      options.reshard_after_forward = policy;
      FullySharded sharded = by_link(context, model, options);
      take_step(sharded, model, order);
      EXPECT_EQ(sharded.gathered_bytes(), 0);
      if (context.rank() == 0) {
        bytes = sharded.gathered_bytes_peak();
      }
    });
    return bytes;
  };
  for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always}) {
    EXPECT_EQ(peak(policy, {0, 1, 2, 3, 4, 5}), 2 * kBytes);
    EXPECT_EQ(peak(policy, {0, 2, 4, 1}), 2 * kBytes);
  }
  EXPECT_EQ(peak(ReshardPolicy::never, {0, 1, 2, 3, 4, 5}), 7 * kBytes);
}

TEST(FullyShard, GradientsAccumulatedUnshardedAreReducedInTheLastMicrobatch) {
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Chain model;
    FullyShardOptions options = kDouble;
    options.reduce_each_microbatch = false;
    FullySharded sharded = by_link(context, model, options);
    const auto gradient = [&](size_t i) { return nn::named_parameters(*model.links[i])[0].parameter->value().grad(); };
    const auto backward = [&](const std::vector<size_t>& links, bool last) {
      sharded.set_last_microbatch(last);
      for (const size_t i : links) {
        model.links[i](at::ones({1, 32}, at::kDouble)).sum().backward();
      }
      sharded.finish_backward();
    };
    sharded.begin_step();
    backward({0, 1}, /*last=*/false);
    EXPECT_FALSE(gradient(0).defined()) << "nothing was sent yet";
    EXPECT_FALSE(gradient(1).defined());
    backward({0}, /*last=*/true);
    // Each use adds a gradient of ones, on both ranks.
    EXPECT_TRUE(at::equal(gradient(0), at::full({16, 32}, 4, at::kDouble)));
    EXPECT_TRUE(at::equal(gradient(1), at::full({16, 32}, 2, at::kDouble)));
    EXPECT_FALSE(gradient(2).defined()) << "nobody used it";

    // Gradients that a failed step left behind do not count in the next step.
    for (const bool reset : {true, false}) {
      clear_gradients(model);
      sharded.begin_step();
      backward({1}, /*last=*/false);
      if (reset) {
        sharded.reset();
      }
      sharded.begin_step();
      backward({1}, /*last=*/true);
      EXPECT_TRUE(at::equal(gradient(1), at::full({16, 32}, 2, at::kDouble))) << reset;
    }
  });
}

// Gloo's reductions hold their inputs twice.
TEST(FullyShard, ReductionsAreInFlightTogetherOnlyIfTheTransportDoesNotCopyThem) {
  const auto most_in_flight = [](bool copies_reductions) {
    std::vector<bool> reduces;  // by number of the collective
    int64_t in_flight = 0;
    int64_t most = 0;
    const auto transport = mesh::fake_transport(
        0,
        2,
        [&](const mesh::FakeCollective& one) {
          reduces.push_back(one.name == "reduce_scatter");
          in_flight += reduces.back() ? 1 : 0;
          most = std::max(most, in_flight);
        },
        [&](size_t number) { in_flight -= reduces[number] ? 1 : 0; },
        copies_reductions);
    mesh::DistributedContext context({.data_parallel_shard = 2}, *transport);
    Chain model;
    FullyShardOptions options = kDouble;
    options.reduce_each_microbatch = false;
    FullySharded sharded = by_link(context, model, options);
    take_step(sharded, model, {0, 1, 2, 3, 4, 5});
    EXPECT_EQ(in_flight, 0);
    return most;
  };
  EXPECT_EQ(most_in_flight(/*copies_reductions=*/false), 6);
  EXPECT_EQ(most_in_flight(/*copies_reductions=*/true), 1);
}

// Uses its weight for positive inputs only.
class SometimesImpl : public nn::Module {
 public:
  SometimesImpl() { declare_parameter("weight", weight, {3}, nn::Init::ones()); }
  at::Tensor forward(const at::Tensor& x) { return x.sum().item<double>() > 0 ? x * weight : x * 1; }
  at::Tensor weight;
};
LEHR_MODULE(Sometimes);

TEST(FullyShard, RanksThatUseNoParameterOfAUnitTakePartInItsReduction) {
  struct Model : nn::Module {
    Model() : first(register_module("first", Sometimes())), second(register_module("second", Sometimes())) {}
    Sometimes first, second;
  };
  on_mesh({.data_parallel_shard = 2}, [](mesh::DistributedContext& context) {
    Model model;
    FullySharded sharded =
        fully_shard(context, model, {{"first", {model.first.ptr()}}, {"second", {model.second.ptr()}}}, kDouble);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters();
    sharded.begin_step();
    const double sign = context.rank() == 0 ? 2 : -2;
    model.second(model.first(at::full({3}, sign, at::kDouble))).sum().backward();
    sharded.finish_backward();
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      ASSERT_TRUE(parameter->value().grad().defined()) << name;
      EXPECT_TRUE(at::equal(parameter->value().grad(), at::full_like(parameter->value(), 2))) << name;
    }
  });
}

TEST(FullyShard, PassesWithoutGradientsNeedNoStepAndReadNewValues) {
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
    sharded.unshard_all();
    EXPECT_EQ(model.head->logits(at::ones({1, 2, kHidden}, at::kDouble)).size(-1), kVocabulary);
    model.loss(rows.ids, rows.labels);
    EXPECT_EQ(model.head->logits(at::ones({1, 2, kHidden}, at::kDouble)).size(-1), kVocabulary);
    sharded.reset();
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    // Outside of calls, parameters have shapes but no numbers.
    EXPECT_TRUE(model.head->logits(at::ones({1, 2, kHidden}, at::kDouble)).is_meta());
  });
}

TEST(FullyShard, ContinuesAfterAnException) {
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

// Two experts per rank, held by two ranks each, and one expert per rank: sharded along dimension 0, and 1.
class ExpertsImpl : public nn::Module {
 public:
  ExpertsImpl(int64_t experts, int64_t rows) {
    declare_parameter("weight", weight, {experts, rows, 2}, nn::Init::normal(1));
  }
  at::Tensor forward(const at::Tensor& x) { return x.sum() * weight; }
  at::Tensor weight;
};
LEHR_MODULE(Experts);

TEST(FullyShard, ShardsExpertsOverTheRanksThatHoldTheSameOnes) {
  for (const auto& [experts, rows] : std::vector<std::pair<int64_t, int64_t>>{{4, 5}, {2, 5}, {2, 6}}) {
    const int64_t dim = experts == 4 ? 0 : 1;
    on_mesh(
        {.data_parallel_shard = 4, .expert_parallel = 2},
        [&, experts = experts, rows = rows](mesh::DistributedContext& context) {
          Experts model(experts, rows);
          nn::Parameter& weight = *model->own_parameter("weight");
          weight.lay_out("ep", Placement::shard(0), context.index("ep"), 2);
          FullySharded sharded = fully_shard(context, *model, {{"experts", {model.ptr()}}}, kDouble);
          EXPECT_EQ(*weight.layout().find("ep_shard"), Placement::shard(dim));
          nn::materialize(*model, at::kCPU, at::kDouble);
          model->reset_parameters({.seed = 3});
          sharded.begin_step();
          const at::Tensor x = at::full({1}, 1.0 + static_cast<double>(context.rank()), at::kDouble);
          const at::Tensor output = model(x);
          EXPECT_EQ(output.sizes(), (std::vector<int64_t>{experts / 2, rows, 2}));
          const at::Tensor factors = at::arange(output.numel(), at::kDouble).view(output.sizes());
          (output * factors).sum().backward();
          sharded.finish_backward();
          // Ranks 0 and 2 hold the same experts, and so do ranks 1 and 3.
          const double expected = context.index("ep") == 0 ? 1.0 + 3.0 : 2.0 + 4.0;
          const int64_t here = weight.value().size(dim),
                        first = context.index("ep_shard") == 0 ? 0 : factors.size(dim) - here;
          EXPECT_TRUE(at::equal(weight.value().grad(), expected * factors.narrow(dim, first, here)));
        });
  }
}

TEST(FullyShard, RefusesUnitsThatDoNotFitTheModel) {
  on_mesh({}, [](mesh::DistributedContext& context) {
    const auto problem = [&](const StackOptions& options, const auto& change) {
      Stack model(options);
      auto units = model.units();
      change(model, units);
      return error_of([&] { fully_shard(context, model, units, {}); });
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
    EXPECT_THAT(error_of([&] { model.embed(at::zeros({1, 1}, at::kLong)); }), HasSubstr("call nn::materialize first"));
    nn::materialize(model, at::kCPU, at::kDouble);
    EXPECT_THAT(error_of([&] { model.embed(at::zeros({1, 1}, at::kLong)); }), HasSubstr("call begin_step() first"));
    EXPECT_THAT(error_of([&] { sharded.finish_backward(); }), HasSubstr("call begin_step() first"));
  });
}

}  // namespace
}  // namespace lehr::shard

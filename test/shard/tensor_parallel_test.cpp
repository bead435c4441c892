// Blocks under tensor and sequence parallelism equal one device, forward and backward.
#include "lehr/shard/tensor_parallel.h"

#include <gmock/gmock.h>

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/low_rank_adapter.h"
#include "lehr/ops/linear/linear.h"
#include "test/shard/one_device.h"

namespace lehr::shard {
namespace {

using mesh::DistributedContext;
using testing::HasSubstr;

constexpr int64_t kBatch = 2, kTokens = 8, kHidden = 12, kHeadDim = 4;

// Compares `call(block, x)` on 2 and 4 ranks with one device, where backward keeps the gathered sequence or gathers it
// again. Outputs are weighted differently at each position, so that a misplaced part shows.
template <class Block>
void expect_equal_to_one_device(
    const std::function<Block()>& make, const std::function<at::Tensor(Block&, const at::Tensor&)>& call) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({kBatch, kTokens, kHidden}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({kBatch, kTokens, kHidden}, at::kDouble);
  Block whole = make();
  test::make_real(*whole);
  const at::Tensor expected = call(whole, x);
  (expected * weight).sum().backward();

  for (const auto& [ranks, regather] : {std::pair{2, false}, {4, false}, {2, true}, {4, true}}) {
    test::on_mesh({.tensor_parallel = ranks}, [&, again = regather](DistributedContext& context) {
      nn::ActivationCheckpointing policy;
      policy.regather = again;
      Block block = make();
      tensor_parallel(*block, context);
      require_tensor_layouts(*block, context);
      test::make_real(*block);
      test::expect_same_values(*block, *whole);
      const at::Tensor input = test::sequence_part(x.detach(), context).clone().requires_grad_();
      const at::Tensor output = nn::run_layer(
          policy, 0, [&](const at::Tensor& part) { return call(block, part); }, input);
      (output * test::sequence_part(weight, context)).sum().backward();
      test::expect_near("output", output, test::sequence_part(expected.detach(), context), expected.detach());
      test::expect_near("input's gradient", input.grad(), test::sequence_part(x.grad(), context), x.grad());
      test::expect_same_gradients(*block, *whole, context);
    });
  }
}

at::Tensor documents() {
  return at::tensor({0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 2, 2, 2}, at::kLong).view({kBatch, kTokens});
}

void expect_attention_equal(const nn::GroupedQueryAttentionParameters& params, const nn::AttentionMask& mask = {}) {
  const int64_t rotary_dim = params.rotary_dim.value_or(params.head_dim);
  const auto angles = nn::RotaryEmbeddingProvider(100.0, rotary_dim)(at::arange(kTokens).unsqueeze(0), at::kDouble);
  expect_equal_to_one_device<nn::GroupedQueryAttention>(
      [&] { return nn::GroupedQueryAttention(params); },
      [&](nn::GroupedQueryAttention& attention, const at::Tensor& x) { return attention(x, angles, mask); });
}

nn::GroupedQueryAttentionParameters plain_attention() {
  return {.hidden_size = kHidden, .num_attention_heads = 8, .num_key_value_heads = 4, .head_dim = kHeadDim};
}

TEST(TensorParallel, AttentionEqualsOneDevice) {
  expect_attention_equal(plain_attention());
}

TEST(TensorParallel, AttentionWithNormedHeadsAndDocumentsEqualsOneDevice) {
  auto params = plain_attention();
  params.qk_norm_eps = 1e-6;
  nn::AttentionMask mask;
  mask.document_ids = documents();
  expect_attention_equal(params, mask);
}

TEST(TensorParallel, AttentionWithBiasesAddsTheOutputBiasOnce) {
  auto params = plain_attention();
  params.attention_bias = true;
  expect_attention_equal(params);
  params.output_bias = false;
  expect_attention_equal(params);
}

TEST(TensorParallel, AttentionWithFewerKeyValueHeadsThanRanksEqualsOneDevice) {
  for (const int64_t heads : {1, 2}) {
    auto params = plain_attention();
    params.num_key_value_heads = heads;
    expect_attention_equal(params);
    params.qk_norm_eps = 1e-6;
    params.attention_bias = true;
    params.sinks = true;
    params.output_gate = true;
    nn::AttentionMask mask;
    mask.document_ids = documents();
    expect_attention_equal(params, mask);
  }
}

// The mean of squares is over the heads of all ranks, and with fewer heads than ranks over each head once.
TEST(TensorParallel, AttentionWithNormsOverTheFullWidthEqualsOneDevice) {
  for (const int64_t heads : {1, 2, 8}) {
    for (const auto kind : {nn::NormWeight::plain, nn::NormWeight::zero_centered}) {
      auto params = plain_attention();
      params.num_key_value_heads = heads;
      params.qk_norm_eps = 1e-2;
      params.qk_norm_width = nn::QKNormWidth::full;
      params.qk_norm_weight = kind;
      expect_attention_equal(params);
    }
  }
}

TEST(TensorParallel, AttentionWithSinksAndWindowEqualsOneDevice) {
  auto params = plain_attention();
  params.sinks = true;
  params.sliding_window = 3;
  nn::AttentionMask mask;
  mask.document_ids = documents();
  expect_attention_equal(params, mask);
}

TEST(TensorParallel, AttentionWithGatesAndAllOtherOptionsEqualsOneDevice) {
  auto params = plain_attention();
  params.output_gate = true;
  expect_attention_equal(params);
  params.qk_norm_eps = 1e-6;
  params.qk_norm_weight = nn::NormWeight::zero_centered;
  params.attention_bias = true;
  params.rotary_dim = 2;
  params.softcap = 5;
  expect_attention_equal(params);
}

TEST(TensorParallel, LatentAttentionEqualsOneDevice) {
  const auto angles = nn::RotaryEmbeddingProvider(100.0, 2)(at::arange(kTokens).unsqueeze(0), at::kDouble);
  nn::AttentionMask mask;
  mask.document_ids = documents();
  for (const bool bottleneck : {false, true}) {
    nn::MultiHeadLatentAttentionParameters params{
        .hidden_size = kHidden,
        .num_attention_heads = 4,
        .kv_lora_rank = 6,
        .qk_nope_head_dim = 4,
        .qk_rope_head_dim = 2,
        .v_head_dim = 3,
        .attention_bias = bottleneck};
    if (bottleneck) {
      params.q_lora_rank = 5;
    }
    expect_equal_to_one_device<nn::MultiHeadLatentAttention>(
        [&] { return nn::MultiHeadLatentAttention(params); },
        [&](nn::MultiHeadLatentAttention& attention, const at::Tensor& x) { return attention(x, angles, mask); });
  }
}

TEST(TensorParallel, FeedForwardsEqualOneDevice) {
  expect_equal_to_one_device<nn::SwiGLU>(
      [] { return nn::SwiGLU(kHidden, 20); }, [](nn::SwiGLU& block, const at::Tensor& x) { return block(x); });
  expect_equal_to_one_device<nn::GeGLU>(
      [] { return nn::GeGLU(kHidden, 20); }, [](nn::GeGLU& block, const at::Tensor& x) { return block(x); });
  expect_equal_to_one_device<nn::GeluMlp>(
      [] { return nn::GeluMlp(nn::GeluMlpParameters{.hidden_size = kHidden, .intermediate_size = 20}); },
      [](nn::GeluMlp& block, const at::Tensor& x) { return block(x); });
}

// Records the sequence lengths of a module's inputs.
class CountCalls : public nn::CallHook {
 public:
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    sizes.push_back(input.size(1));
    return forward(input);
  }
  std::vector<int64_t> sizes;
};

TEST(TensorParallel, GathersTheSequenceOncePerBlock) {
  test::on_mesh({.tensor_parallel = 2}, [](DistributedContext& context) {
    nn::SwiGLU block(kHidden, 20);
    const auto at_gate = std::make_shared<CountCalls>(), at_block = std::make_shared<CountCalls>();
    block->gate_proj->add_call_hook(at_gate);
    tensor_parallel(*block, context);
    block->add_call_hook(at_block);
    test::make_real(*block);
    block(at::ones({1, kTokens / 2, kHidden}, at::kDouble));
    EXPECT_EQ(at_block->sizes, std::vector<int64_t>{kTokens / 2});
    EXPECT_EQ(at_gate->sizes, std::vector<int64_t>{kTokens});
  });
}

TEST(TensorParallel, HasNoEffectOnOneRank) {
  test::on_mesh({}, [](DistributedContext& context) {
    nn::GroupedQueryAttention attention(plain_attention());
    tensor_parallel(*attention, context);
    require_tensor_layouts(*attention, context);
    EXPECT_TRUE(attention->call_hooks().empty());
    EXPECT_EQ(attention->q_proj->own_parameter("weight")->layout(), Layout());
  });
}

TEST(TensorParallel, RefusesSizesThatDoNotDivideEvenly) {
  const mesh::DeviceMeshParameters mesh{.tensor_parallel = 4};
  auto params = plain_attention();
  const auto refused = [&] {
    return test::problem_on(mesh, [&](DistributedContext& context) {
      nn::GroupedQueryAttention attention(params);
      tensor_parallel(*attention, context);
    });
  };
  params.num_attention_heads = 12;
  params.num_key_value_heads = 6;
  EXPECT_THAT(
      refused(),
      HasSubstr("num_key_value_heads: 6 cannot be split evenly over parallelism.tensor_parallel_degree = 4"));
  params.num_key_value_heads = 1;
  params.head_dim = 6;
  EXPECT_THAT(
      refused(),
      HasSubstr("num_key_value_heads: each of 1 key/value heads is shared by 4 ranks "
                "(parallelism.tensor_parallel_degree = 4), which does not divide its 6 rows (head_dim)"));
  params = plain_attention();
  params.num_key_value_heads = 2;
  params.num_attention_heads = 6;
  EXPECT_THAT(
      test::problem_on(
          mesh,
          [&](DistributedContext& context) {
            nn::GroupedQueryAttention attention(params);
            tensor_parallel(*attention, context);
          }),
      HasSubstr("num_attention_heads: 6 cannot be split evenly over parallelism.tensor_parallel_degree = 4"));
  EXPECT_THAT(
      test::problem_on(
          mesh,
          [](DistributedContext& context) {
            nn::SwiGLU block(kHidden, 18);
            tensor_parallel(*block, context);
          }),
      HasSubstr("intermediate_size: 18 cannot be split evenly over parallelism.tensor_parallel_degree = 4"));
}

TEST(TensorParallel, RefusesAModuleThatNoStyleCovers) {
  EXPECT_THAT(
      test::problem_on(
          {.tensor_parallel = 2},
          [](DistributedContext& context) {
            nn::SwiGLU block(kHidden, 20);
            column_parallel(*block->gate_proj, context);
            row_parallel(*block->down_proj, context);
            require_tensor_layouts(*block, context);
          }),
      HasSubstr("parameter up_proj.weight: has no placement on axis tp"));
}

class Doubling : public nn::LinearAdapter {
 public:
  at::Tensor forward(const at::Tensor& input) override { return input; }
};

// B A x, as lehr/peft has it.
class LowRank : public nn::LinearAdapter, public nn::LowRankAdapter {
 public:
  LowRank(int64_t in, int64_t out) {
    a_ = declare_parameter("A", a, {3, in}, nn::Init::normal(1));
    b_ = declare_parameter("B", b, {out, 3}, nn::Init::normal(1));
  }
  at::Tensor forward(const at::Tensor& input) override { return ops::linear(ops::linear(input, a, {}), b, {}); }
  const nn::ParameterPtr& input_matrix() const override { return a_; }
  const nn::ParameterPtr& output_matrix() const override { return b_; }
  void set_sequence_chunks(std::vector<int64_t>) override {}
  void set_sequence_part(int64_t part, int64_t parts) override { part_of = {part, parts}; }

  std::pair<int64_t, int64_t> part_of{0, 1};

 private:
  at::Tensor a, b;
  nn::ParameterPtr a_, b_;
};

TEST(TensorParallel, FeedForwardWithAdaptersEqualsOneDevice) {
  expect_equal_to_one_device<nn::SwiGLU>(
      [] {
        nn::SwiGLU block(kHidden, 20);
        block->gate_proj->set_adapter("a", std::make_shared<LowRank>(kHidden, 20));
        block->down_proj->set_adapter("a", std::make_shared<LowRank>(20, kHidden));
        return block;
      },
      [](nn::SwiGLU& block, const at::Tensor& x) { return block(x); });
}

TEST(TensorParallel, RefusesAdaptersWhoseShardingIsNotKnown) {
  const mesh::DeviceMeshParameters mesh{.tensor_parallel = 2};
  const auto problem = [&](const std::function<void(nn::SwiGLU&)>& before, const auto& after) {
    return test::problem_on(mesh, [&](DistributedContext& context) {
      nn::SwiGLU block(kHidden, kHidden);
      before(block);
      tensor_parallel(*block, context);
      test::make_real(*block);
      after(block);
      block(at::ones({1, kTokens / 2, kHidden}, at::kDouble));
    });
  };
  const auto none = [](nn::SwiGLU&) {};
  const auto at_gate = [](nn::SwiGLU& block) { block->gate_proj->set_adapter("a", std::make_shared<Doubling>()); };
  const auto at_down = [](nn::SwiGLU& block) { block->down_proj->set_adapter("a", std::make_shared<Doubling>()); };
  const auto refused = HasSubstr("a projection has an adapter that is not an nn::LowRankAdapter");
  EXPECT_THAT(problem(at_gate, none), refused);
  EXPECT_THAT(problem(at_down, none), refused);
  EXPECT_THAT(problem(none, at_down), refused);
  const auto late = [](nn::SwiGLU& block) {
    block->down_proj->set_adapter("a", std::make_shared<LowRank>(kHidden / 2, kHidden));
    nn::materialize(*block, at::kCPU, at::kDouble);
  };
  EXPECT_THAT(problem(none, late), HasSubstr("after tensor parallelism was applied"));
}

// Dropout of an adapter needs the positions of its inputs.
TEST(TensorParallel, TellsAdaptersThatTheySeeAPartOfASequence) {
  test::on_mesh({.tensor_parallel = 2}, [](DistributedContext& context) {
    const std::pair<int64_t, int64_t> own{context.index(mesh::axis::tp), 2};
    const auto adapt = [](nn::LinearImpl& linear) {
      const auto adapter = std::make_shared<LowRank>(kHidden, kHidden);
      linear.set_adapter("a", adapter);
      return adapter;
    };
    nn::Linear alone(kHidden, kHidden);
    nn::LinearSubblock block("linear_mlp", kHidden, nn::Init::zeros());
    const auto of_alone = adapt(*alone);
    const auto of_block = adapt(dynamic_cast<nn::LinearImpl&>(*block->named_children()["linear_mlp"]));
    on_parts(*alone, context);
    on_parts(*block, context);
    EXPECT_EQ(of_alone->part_of, own);
    EXPECT_EQ(of_block->part_of, own);
  });
}

}  // namespace
}  // namespace lehr::shard

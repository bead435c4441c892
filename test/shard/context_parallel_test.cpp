// Attention over sequences that are split over ranks equals one device, forward and backward, with all options.
#include "lehr/shard/context_parallel.h"

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/shard/context_attention.h"
#include "test/shard/against_one_device.h"

namespace lehr::shard::test {
namespace {

using mesh::DeviceMeshParameters;
using mesh::DistributedContext;
using testing::HasSubstr;

constexpr int64_t kHidden = 12;
constexpr int64_t kTokens = 32;

nn::GroupedQueryAttentionParameters grouped() {
  return {
      .hidden_size = kHidden,
      .num_attention_heads = 4,
      .num_key_value_heads = 2,
      .head_dim = 6,
      .qk_norm_eps = 1e-6,
      .init = nn::Init::normal(0.7)};
}

struct Variant {
  std::string what;
  nn::GroupedQueryAttentionParameters parameters;
  ops::AttentionMask mask = {};
};

// Two sequences whose documents cross the borders of all chunks; the second has a document in two pieces.
at::Tensor documents() {
  at::Tensor ids = at::zeros({2, kTokens}, at::kLong);
  ids[0].narrow(0, 7, 11).fill_(1);
  ids[0].narrow(0, 18, 14).fill_(2);
  ids[1].narrow(0, 3, 20).fill_(5);
  return ids;
}

at::Tensor padding() {
  at::Tensor kept = at::ones({2, kTokens}, at::kBool);
  kept[0].narrow(0, 0, 9).fill_(false);  // the first queries are fully masked
  kept[1].narrow(0, 20, 12).fill_(false);
  return kept;
}

std::vector<Variant> variants() {
  auto windowed = grouped();
  windowed.sliding_window = 7;
  auto capped = grouped();
  capped.softcap = 2.0;
  auto sunk = grouped();
  sunk.sinks = true;
  auto all = capped;
  all.sliding_window = 11;
  all.sinks = true;
  all.output_gate = true;
  return {
      {.what = "plain", .parameters = grouped()},
      {.what = "documents", .parameters = grouped(), .mask = {.document_ids = documents()}},
      {.what = "one row of documents", .parameters = grouped(), .mask = {.document_ids = documents().narrow(0, 0, 1)}},
      {.what = "padding", .parameters = grouped(), .mask = {.key_padding = padding()}},
      {.what = "window", .parameters = windowed},
      {.what = "softcap", .parameters = capped},
      {.what = "sinks", .parameters = sunk},
      {.what = "no order", .parameters = grouped(), .mask = {.causal = false}},
      {.what = "no order, documents, padding",
       .parameters = sunk,
       .mask = {.causal = false, .document_ids = documents(), .key_padding = padding()}},
      {.what = "all", .parameters = all, .mask = {.document_ids = documents(), .key_padding = padding()}}};
}

nn::PositionEmbeddings angles(int64_t size, const at::Tensor& positions) {
  return nn::RotaryEmbeddingProvider(100.0, size)(positions, at::kDouble);
}

// Compares attention modules that `make` builds, with angles of `rotary` elements, with one device.
template <class Make>
void expect_as_one_device(
    const std::string& what,
    int64_t ranks,
    ContextParallelMethod method,
    const Make& make,
    int64_t rotary,
    const ops::AttentionMask& mask,
    bool recompute = false) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, kTokens, kHidden}, at::kDouble).set_requires_grad(true);
  const at::Tensor w = at::randn({2, kTokens, kHidden}, at::kDouble);
  const at::Tensor positions = at::arange(kTokens).unsqueeze(0);
  auto one = make();
  fill(*one);
  const at::Tensor expected = one(x, angles(rotary, positions), mask);
  (expected * w).sum().backward();
  const Gradients gradients = gradients_of(*one);
  on_mesh({.context_parallel = ranks}, [&](DistributedContext& context) {
    const std::string subject = what + (method == ContextParallelMethod::ring ? ", ring" : "");
    auto part = make();
    parallelize_context(context, *part, method);
    replicate_the_rest(*part, context);
    fill(*part);
    const auto mine = [&](const at::Tensor& whole) {
      return whole.defined() ? take_context_part(whole.detach(), 1, context.index(mesh::axis::cp), ranks) : whole;
    };
    ops::AttentionMask local = mask;
    local.document_ids = mine(mask.document_ids);
    local.key_padding = mine(mask.key_padding);
    const at::Tensor input = mine(x).set_requires_grad(true);
    auto block = [part, local, positions = mine(positions), rotary](const at::Tensor& h) mutable {
      return part(h, angles(rotary, positions), local);
    };
    const at::Tensor output = recompute ? nn::checkpoint(block, input) : block(input);
    expect_equal(subject + ", output", output, mine(expected));
    (output * mine(w)).sum().backward();
    expect_equal(subject + ", input", input.grad(), mine(x.grad()));
    expect_gradients(*part, context, gradients, subject);
  });
}

const std::vector<ContextParallelMethod> kMethods = {ContextParallelMethod::all_gather, ContextParallelMethod::ring};

TEST(ContextParallel, EqualsOneDeviceForAllAttentionOptions) {
  for (const auto method : kMethods) {
    for (const int64_t ranks : {2, 4}) {
      for (const Variant& variant : variants()) {
        const auto make = [&] { return nn::GroupedQueryAttention(variant.parameters); };
        expect_as_one_device(variant.what, ranks, method, make, 6, variant.mask);
      }
    }
  }
}

TEST(ContextParallel, EqualsOneDeviceWithRecompute) {
  for (const auto method : kMethods) {
    const auto make = [] { return nn::GroupedQueryAttention(grouped()); };
    expect_as_one_device("recomputed", 4, method, make, 6, {.document_ids = documents()}, /*recompute=*/true);
  }
}

TEST(ContextParallel, EqualsOneDeviceForLatentAttention) {
  const auto make = [] {
    return nn::MultiHeadLatentAttention(nn::MultiHeadLatentAttentionParameters{
        .hidden_size = kHidden,
        .num_attention_heads = 3,
        .kv_lora_rank = 8,
        .qk_nope_head_dim = 4,
        .qk_rope_head_dim = 2,
        .v_head_dim = 5,
        .init = nn::Init::normal(0.7)});
  };
  for (const auto method : kMethods) {
    for (const int64_t ranks : {2, 4}) {
      expect_as_one_device("latent", ranks, method, make, 2, {.document_ids = documents()});
    }
  }
}

// In float32 the all-gather variant uses the fused kernel. 1e-5: rounding of sums of 128 terms, twice.
TEST(ContextParallel, IsCloseToOneDeviceInFloat32) {
  at::manual_seed(5);
  const auto random = [](int64_t heads) { return at::randn({1, 128, heads, 16}).set_requires_grad(true); };
  const at::Tensor q = random(4), k = random(2), v = random(2), w = at::randn({1, 128, 4, 16});
  const at::Tensor sinks = at::randn({4}).set_requires_grad(true);
  const ops::AttentionMask mask{.document_ids = (at::arange(128) / 50).to(at::kLong).unsqueeze(0)};
  const at::Tensor expected = ops::attention(q, k, v, mask, {.window = 40, .sinks = sinks});
  (expected * w).sum().backward();
  for (const auto method : kMethods) {
    on_mesh({.context_parallel = 2}, [&](DistributedContext& context) {
      const mesh::Group& cp = context.group(mesh::axis::cp);
      const auto mine = [&](const at::Tensor& whole) { return take_context_part(whole.detach(), 1, cp.rank(), 2); };
      std::vector<at::Tensor> inputs;
      for (const at::Tensor& whole : {q, k, v}) {
        inputs.push_back(mine(whole).set_requires_grad(true));
      }
      const at::Tensor own_sinks = sinks.detach().clone().set_requires_grad(true);
      const auto attend = method == ContextParallelMethod::ring ? ring_attention : all_gather_attention;
      const at::Tensor output = attend(
          inputs[0],
          inputs[1],
          inputs[2],
          {.document_ids = mine(mask.document_ids)},
          {.window = 40, .sinks = own_sinks},
          cp);
      EXPECT_EQ(output.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::allclose(output, mine(expected), 1e-5, 1e-5));
      (output * mine(w)).sum().backward();
      EXPECT_TRUE(at::allclose(inputs[0].grad(), mine(q.grad()), 1e-5, 1e-5));
      EXPECT_TRUE(at::allclose(inputs[1].grad(), mine(k.grad()), 1e-5, 1e-5));
      EXPECT_TRUE(at::allclose(inputs[2].grad(), mine(v.grad()), 1e-5, 1e-5));
      at::Tensor sum = own_sinks.grad().clone();
      cp.all_reduce(sum);
      EXPECT_TRUE(at::allclose(sum, sinks.grad(), 1e-4, 1e-4));
    });
  }
}

TEST(ContextParallel, AssignsEachRankAnEarlyAndALateChunk) {
  const at::Tensor row = at::arange(8).unsqueeze(0);
  EXPECT_TRUE(at::equal(take_context_part(row, 1, 0, 2), at::tensor({0, 1, 6, 7}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(take_context_part(row, 1, 1, 2), at::tensor({2, 3, 4, 5}, at::kLong).unsqueeze(0)));
  for (const int64_t dim : {0, 1}) {
    const at::Tensor whole = at::randn({12, 12, 2});
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < 3; ++rank) {
      parts.push_back(take_context_part(whole, dim, rank, 3));
    }
    EXPECT_TRUE(at::equal(in_order_of_positions(at::cat(parts, dim), dim, 3), whole));
  }
}

TEST(ContextParallel, ShardsTheInputsOfAModelAndSetsPositions) {
  on_mesh({.context_parallel = 2}, [](DistributedContext& context) {
    const at::Tensor ids = at::arange(100, 116).view({2, 8});
    const nn::ModelInputs part = take_context_part(
        {.input_ids = ids,
         .labels = ids + 1,
         .future_ids = at::stack({ids, ids + 2}, 2),
         .future_labels = at::stack({ids + 3, ids + 4}, 2),
         .pooling_mask = ids % 2,
         .attention_mask = {.document_ids = ids / 3}},
        context);
    const auto mine = [&](const at::Tensor& whole) {
      return take_context_part(whole, 1, context.index(mesh::axis::cp), 2);
    };
    EXPECT_TRUE(at::equal(part.input_ids, mine(ids)));
    EXPECT_TRUE(at::equal(part.labels, mine(ids + 1)));
    EXPECT_TRUE(at::equal(part.future_ids, mine(at::stack({ids, ids + 2}, 2))));
    EXPECT_TRUE(at::equal(part.future_labels, mine(at::stack({ids + 3, ids + 4}, 2))));
    EXPECT_TRUE(at::equal(part.pooling_mask, mine(ids % 2)));
    EXPECT_TRUE(at::equal(part.attention_mask.document_ids, mine(ids / 3)));
    EXPECT_TRUE(at::equal(part.position_ids, mine(at::arange(8).unsqueeze(0))));
    const nn::ModelInputs own = take_context_part({.input_ids = ids, .position_ids = ids % 5}, context);
    EXPECT_TRUE(at::equal(own.position_ids, mine(ids % 5)));
  });
}

TEST(ContextParallel, RefusesOptionsThatNeedWholeSequences) {
  const auto problem = [](const std::function<void(DistributedContext&)>& body) {
    return problem_on({.context_parallel = 2}, body);
  };
  const auto inputs_problem = [&](const nn::ModelInputs& inputs) {
    return problem([&](DistributedContext& context) { take_context_part(inputs, context); });
  };
  const auto call_problem = [&](int64_t queries, const ops::AttentionMask& mask) {
    return problem([&](DistributedContext& context) {
      const at::Tensor x = at::zeros({1, 4, 2, 4});
      all_gather_attention(x.narrow(1, 0, queries), x, x, mask, {}, context.group(mesh::axis::cp));
    });
  };
  const at::Tensor ids = at::zeros({1, 8}, at::kLong);
  EXPECT_THAT(
      inputs_problem({.input_ids = ids.narrow(1, 0, 6)}),
      HasSubstr("training.seq_len: a sequence of 6 tokens cannot be split over "
                "parallelism.context_parallel_degree = 2"));
  EXPECT_NO_THROW(check_context_parts(7, 1));
  EXPECT_THROW(check_context_parts(12, 4), Error);
  nn::KeyValueCaches caches(1);
  EXPECT_THAT(inputs_problem({.input_ids = ids, .caches = &caches}), HasSubstr("caches hold whole sequences"));
  EXPECT_THAT(
      inputs_problem({.input_ids = ids, .hidden_states_agg_mask = ids}),
      HasSubstr("parallelism.context_parallel_degree: a snapshot that averages the tokens of a sequence"));
  EXPECT_THAT(
      inputs_problem({.input_ids = ids, .attention_mask = {.bias = at::zeros({8, 8})}}),
      HasSubstr("attention_mask.allowed and .bias are not supported"));
  EXPECT_THAT(inputs_problem({.hidden_states = at::zeros({1, 4, 2})}), HasSubstr("position_ids: required"));
  EXPECT_THAT(call_problem(4, {.allowed = at::ones({4, 4}, at::kBool)}), HasSubstr("are not supported"));
  EXPECT_THAT(call_problem(2, {}), HasSubstr("2 queries and 4 keys; key/value caches are not supported"));
  EXPECT_THAT(
      problem([](DistributedContext& context) {
        nn::GroupedQueryAttention attention(grouped());
        parallelize_context(context, *attention);
        parallelize_context(context, *attention);
      }),
      HasSubstr("has its own attention core"));
}

}  // namespace
}  // namespace lehr::shard::test

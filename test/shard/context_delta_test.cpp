// Gated DeltaNet and Mamba-2 over sequences that are split over ranks equal one device, forward and backward, with
// documents and padding wherever they begin.
#include "lehr/shard/context_delta.h"

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/gated_delta_net.h"
#include "lehr/nn/mamba2.h"
#include "lehr/shard/context_borders.h"
#include "lehr/shard/context_parallel.h"
#include "test/shard/against_one_device.h"

namespace lehr::shard::test {
namespace {

using mesh::DistributedContext;
using testing::HasSubstr;

constexpr int64_t kHidden = 12;

nn::GatedDeltaNetParameters sizes() {
  return {
      .hidden_size = kHidden,
      .num_key_heads = 2,
      .num_value_heads = 4,
      .key_head_dim = 5,
      .value_head_dim = 3,
      .init = nn::Init::normal(0.7)};
}

nn::Mamba2Parameters mamba_sizes() {
  return {
      .hidden_size = kHidden,
      .num_heads = 4,
      .head_dim = 3,
      .num_groups = 2,
      .state_size = 5,
      .init = nn::Init::normal(0.7)};
}

template <class Block>
void slow_decay(Block& block) {
  const at::NoGradGuard no_grad;
  block.a_log.fill_(-3);  // states that last for many chunks
  block.dt_bias.fill_(0.5);
}

nn::GatedDeltaNet block_of(const nn::GatedDeltaNetParameters& params) {
  return nn::GatedDeltaNet(params);
}
nn::Mamba2 block_of(const nn::Mamba2Parameters& params) {
  return nn::Mamba2(params);
}

// Compares with one device on 2 rows of `tokens` tokens: the output, and the gradients of the input and all parameters.
template <class Parameters>
void expect_as_one_device(
    const std::string& what,
    int64_t ranks,
    int64_t tokens,
    const Parameters& params,
    const ops::AttentionMask& mask,
    bool recompute = false) {
  const at::Tensor x = at::randn({2, tokens, kHidden}, at::kDouble).set_requires_grad(true);
  const at::Tensor w = at::randn({2, tokens, kHidden}, at::kDouble);
  auto one = block_of(params);
  fill(*one);
  slow_decay(*one);
  const at::Tensor expected = one(x, mask);
  (expected * w).sum().backward();
  const Gradients gradients = gradients_of(*one);
  on_mesh({.context_parallel = ranks}, [&](DistributedContext& context) {
    auto part = block_of(params);
    parallelize_context(context, *part);
    replicate_the_rest(*part, context);
    fill(*part);
    slow_decay(*part);
    const auto mine = [&](const at::Tensor& whole) {
      return whole.defined() ? take_context_part(whole.detach(), 1, context.index(mesh::axis::cp), ranks) : whole;
    };
    const ops::AttentionMask local{.document_ids = mine(mask.document_ids), .key_padding = mine(mask.key_padding)};
    const at::Tensor input = mine(x).set_requires_grad(true);
    auto block = [part, local](const at::Tensor& h) mutable { return part(h, local); };
    const at::Tensor output = recompute ? nn::checkpoint(block, input) : block(input);
    expect_equal(what + ", output", output, mine(expected));
    (output * mine(w)).sum().backward();
    expect_equal(what + ", input", input.grad(), mine(x.grad()));
    expect_gradients(*part, context, gradients, what);
  });
}

// Ids of documents that begin at these positions, (1, tokens).
at::Tensor beginning_at(const std::vector<int64_t>& positions, int64_t tokens) {
  at::Tensor ids = at::zeros({1, tokens}, at::kLong);
  for (const int64_t position : positions) {
    ids.slice(1, position).add_(1);
  }
  return ids;
}

TEST(ContextDelta, EqualsOneDevice) {
  at::manual_seed(1);
  auto one_tap = sizes(), wide = sizes();
  one_tap.conv_kernel = 1;
  wide.conv_kernel = 6;
  wide.value_head_dim = 7;
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t chunk : {1, 2, 3, 4, 9, 70}) {  // shorter than a kernel, as long, of several chunks of the rule
      expect_as_one_device(fmt::format("chunks of {}", chunk), ranks, 2 * ranks * chunk, sizes(), {});
    }
    expect_as_one_device("a kernel of 1", ranks, 2 * ranks * 5, one_tap, {});
    expect_as_one_device("a kernel of 6", ranks, 2 * ranks * 4, wide, {});
  }
}

TEST(ContextDelta, BeginsAnewInDocumentsThatBeginAroundTheBordersOfChunks) {
  at::manual_seed(2);
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t chunk : {2, 8}) {
      const int64_t tokens = 2 * ranks * chunk;
      for (const int64_t around : {-3, -1, 0, 1, 3}) {
        const int64_t first = chunk + around, last = tokens - chunk + around;
        std::vector<int64_t> begins;
        for (const int64_t one : {first, last}) {
          if (one > 0 && one < tokens) {
            begins.push_back(one);
          }
        }
        expect_as_one_device(
            fmt::format("documents at chunks of {} {:+}", chunk, around),
            ranks,
            tokens,
            sizes(),
            {.document_ids = beginning_at(begins, tokens)});
      }
    }
  }
}

TEST(ContextDelta, EqualsOneDeviceForAnyDocumentsAndPadding) {
  at::manual_seed(3);
  for (int64_t draw = 0; draw < 24; ++draw) {
    const int64_t ranks = 2 + draw % 3, chunk = 1 + draw % 5, tokens = 2 * ranks * chunk;
    const double often = draw % 2 == 0 ? 0.1 : 0.4;
    const at::Tensor ids = (at::rand({2, tokens}) < often).to(at::kLong).cumsum(1);
    at::Tensor kept = at::ones({2, tokens}, at::kBool);
    if (draw % 3 == 0) {  // at the begin of one row and at the end of the other
      kept[0].narrow(0, 0, draw % tokens / 2 + 1).fill_(false);
      kept[1].narrow(0, tokens - chunk, chunk).fill_(false);
    }
    const bool padded = draw % 3 == 0;
    expect_as_one_device(
        fmt::format("draw {}", draw),
        ranks,
        tokens,
        sizes(),
        {.document_ids = draw % 6 == 3 ? at::Tensor() : ids, .key_padding = padded ? kept : at::Tensor()});
  }
}

TEST(ContextMamba2, EqualsOneDevice) {
  at::manual_seed(11);
  auto one_tap = mamba_sizes(), wide = mamba_sizes();
  one_tap.conv_kernel = 1;
  wide.conv_kernel = 6;
  wide.head_dim = 7;
  wide.conv_bias = false;
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t chunk : {1, 3, 9, 70}) {
      expect_as_one_device(fmt::format("chunks of {}", chunk), ranks, 2 * ranks * chunk, mamba_sizes(), {});
    }
    expect_as_one_device("a kernel of 1", ranks, 2 * ranks * 5, one_tap, {});
    expect_as_one_device("a kernel of 6", ranks, 2 * ranks * 4, wide, {});
  }
  expect_as_one_device("recomputed", 4, 40, mamba_sizes(), {.document_ids = beginning_at({3, 10, 27}, 40)}, true);
}

// In Mamba-2, convolutions of padding are not zero, because of their biases.
TEST(ContextMamba2, EqualsOneDeviceForAnyDocumentsAndPadding) {
  at::manual_seed(12);
  for (int64_t draw = 0; draw < 24; ++draw) {
    const int64_t ranks = 2 + draw % 3, chunk = 1 + draw % 5, tokens = 2 * ranks * chunk;
    const at::Tensor ids = (at::rand({2, tokens}) < (draw % 2 == 0 ? 0.1 : 0.4)).to(at::kLong).cumsum(1);
    at::Tensor kept = at::ones({2, tokens}, at::kBool);
    kept[0].narrow(0, 0, draw % tokens / 2 + 1).fill_(false);
    kept[1].narrow(0, tokens - chunk, chunk).fill_(false);
    expect_as_one_device(
        fmt::format("draw {}", draw),
        ranks,
        tokens,
        mamba_sizes(),
        {.document_ids = draw % 6 == 3 ? at::Tensor() : ids, .key_padding = draw % 3 == 0 ? kept : at::Tensor()});
  }
}

TEST(ContextDelta, EqualsOneDeviceWithRecompute) {
  at::manual_seed(4);
  expect_as_one_device("recomputed", 4, 40, sizes(), {.document_ids = beginning_at({3, 10, 27}, 40)}, true);
}

// Chunks of 12 tokens: a document that begins with a chunk and ends after the first token of another one.
TEST(ContextDelta, EqualsSeparateDocuments) {
  at::manual_seed(5);
  const int64_t tokens = 48, ranks = 2;
  const std::vector<int64_t> borders{0, 5, 12, 37, tokens};
  nn::GatedDeltaNet alone(sizes());
  fill(*alone);
  slow_decay(*alone);
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({1, tokens, kHidden}, at::kDouble);
  std::vector<at::Tensor> separate;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    separate.push_back(alone(x.slice(1, borders[i], borders[i + 1])));
  }
  const at::Tensor expected = at::cat(separate, 1);
  EXPECT_GT((alone(x) - expected).abs().max().item<double>(), 1e-2) << "leaks would not show";
  on_mesh({.context_parallel = ranks}, [&](DistributedContext& context) {
    const at::NoGradGuard not_here_either;
    nn::GatedDeltaNet part(sizes());
    parallelize_context(context, *part);
    fill(*part);
    slow_decay(*part);
    const auto mine = [&](const at::Tensor& whole) {
      return take_context_part(whole, 1, context.index(mesh::axis::cp), ranks);
    };
    const at::Tensor ids = beginning_at({borders[1], borders[2], borders[3]}, tokens);
    const at::Tensor found = part(mine(x), ops::AttentionMask{.document_ids = mine(ids)});
    EXPECT_LE((found - mine(expected)).abs().max().item<double>(), 1e-12 * expected.abs().max().item<double>());
  });
}

// 1e-5: rounding of states and sums, over two chunks of the rule.
TEST(ContextDelta, IsCloseToOneDeviceInFloat32) {
  at::manual_seed(6);
  const auto streams_of = [](int64_t tokens) {
    return nn::LinearAttentionStreams{
        .heads = {at::randn({1, tokens, 2, 8}), at::randn({1, tokens, 2, 8}), at::randn({1, tokens, 4, 6})},
        .weights = {at::randn({16, 1, 4}), at::randn({16, 1, 4}), at::randn({24, 1, 4})},
        .decay = -at::rand({1, tokens, 4}).pow(4),
        .beta = at::rand({1, tokens, 4})};
  };
  const nn::LinearAttentionStreams whole = streams_of(256);
  const auto doubled = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const auto part_of = [&](int64_t rank, auto converted) {
    const auto mine = [&](const at::Tensor& x) { return converted(take_context_part(x, 1, rank, 2)); };
    nn::LinearAttentionStreams part = whole;
    for (size_t i = 0; i < 3; ++i) {
      part.heads[i] = mine(whole.heads[i]);
      part.weights[i] = converted(whole.weights[i]);
    }
    part.decay = mine(whole.decay);
    part.beta = mine(whole.beta);
    return part;
  };
  on_mesh({.context_parallel = 2}, [&](DistributedContext& context) {
    const mesh::Group& cp = context.group(mesh::axis::cp);
    const at::Tensor expected = context_gated_delta(part_of(cp.rank(), doubled), {}, cp);
    const at::Tensor found = context_gated_delta(part_of(cp.rank(), [](const at::Tensor& x) { return x; }), {}, cp);
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-5));
  });
}

// Of chunks of two tokens, each sees the three before it that belong to the document of its first token.
TEST(ContextDelta, FindsTheTokensThatContinueADocument) {
  on_mesh({.context_parallel = 2}, [](DistributedContext& context) {
    const mesh::Group& cp = context.group(mesh::axis::cp);
    const at::Tensor ids = at::tensor({0, 1, 1, 1, 1, 2, 2, 2}, at::kLong).unsqueeze(0);
    const ops::AttentionMask mask{.document_ids = take_context_part(ids, 1, cp.rank(), 2)};
    const at::Tensor expected =
        at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1}, at::kLong).view({4, 1, 3}).to(at::kBool);
    EXPECT_TRUE(at::equal(continued_tokens(mask, 2, 3, at::kCPU, cp), expected));
    const at::Tensor again = at::tensor({3, 3, 4, 3, 3, 3, 3, 3}, at::kLong).unsqueeze(0);  // seen by the third chunk
    const at::Tensor found =
        continued_tokens({.document_ids = take_context_part(again, 1, cp.rank(), 2)}, 2, 3, at::kCPU, cp);
    EXPECT_TRUE(at::equal(found[2], at::tensor({0, 0, 1}, at::kLong).view({1, 3}).to(at::kBool)));
    const at::Tensor all = continued_tokens({}, 2, 3, at::kCPU, cp);
    EXPECT_EQ(all.sum().item<int64_t>(), 0 + 2 + 3 + 3);
  });
}

TEST(ContextDelta, RefusesWhatNeedsWholeSequences) {
  const auto problem = [](const std::function<void(nn::GatedDeltaNet&)>& body) {
    return problem_on({.context_parallel = 2}, [&](DistributedContext& context) {
      nn::GatedDeltaNet block(sizes());
      parallelize_context(context, *block);
      fill(*block);
      body(block);
      parallelize_context(context, *block);
    });
  };
  const at::Tensor x = at::zeros({1, 4, kHidden}, at::kDouble);
  EXPECT_THAT(
      problem([&](nn::GatedDeltaNet& block) {
        nn::KeyValueCache cache;
        block(x, ops::AttentionMask{}, &cache);
      }),
      HasSubstr("a cache holds the states of whole sequences"));
  EXPECT_THAT(
      problem([&](nn::GatedDeltaNet& block) {
        block(x, ops::AttentionMask{.allowed = at::ones({4, 4}, at::kBool)});
      }),
      HasSubstr("allowed and bias are not supported"));
  EXPECT_THAT(
      problem([&](nn::GatedDeltaNet& block) { block(x.narrow(1, 0, 3)); }),
      HasSubstr("expected two chunks of a sequence on each rank, found 3 positions"));
  EXPECT_THAT(problem([](nn::GatedDeltaNet&) {}), HasSubstr("has its own attention core"));
}

}  // namespace
}  // namespace lehr::shard::test

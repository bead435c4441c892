// Variable-length attention compared with masked attention: values, gradients, memory.
#include "lehr/ops/attention/attention_varlen.h"

#include <gmock/gmock.h>

#include <random>

#include "lehr/meter/memory_meter.h"
#include "lehr/meter/on_meta.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "test/ops/attention_definition.h"
#include "test/ops/efficient_on_host.h"
#include "test/ops/flash_on_host.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

// One call of attention whose mask can be written as sequences.
struct Layout {
  Shape shape;
  AttentionMask mask;
  AttentionOptions options;
  std::string what;

  Sequences sequences() const {
    const auto lengths = cumulative_lengths_of(mask, shape.batch, shape.keys);
    return {
        .cumulative_lengths =
            lengths->defined() ? *lengths : cumulative_lengths_of_rows(shape.batch, shape.keys, at::kCPU),
        .row_length = shape.keys};
  }
};

// Rows of documents, with padding at either end or without; any options.
Layout random_layout(int seed) {
  std::mt19937 random(seed);
  const auto any = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  const int64_t rows = any(1, 3), tokens = any(2, 40), key_heads = any(1, 2), size = any(1, 20);
  Layout layout{
      .shape = {rows, tokens, tokens, key_heads * any(1, 3), key_heads, size, any(0, 1) == 0 ? size : any(1, 24)},
      .mask = {},
      .options = {},
      .what = "layout " + std::to_string(seed)};
  if (any(0, 3) > 0) {
    const int64_t longest = any(1, tokens);
    at::Tensor ids = at::empty({any(0, 1) == 0 ? rows : 1, tokens}, at::kLong);
    for (int64_t row = 0; row < ids.size(0); ++row) {
      for (int64_t first = 0, id = 0; first < tokens; ++id) {
        const int64_t count = std::min(any(1, longest), tokens - first);
        ids[row].narrow(0, first, count).fill_(first + count == tokens ? -1 : id);  // -1 is the padding of packed rows
        first += count;
      }
    }
    layout.mask.document_ids = ids;
  }
  if (any(0, 1) == 0) {
    layout.mask.key_padding = at::ones({rows, tokens}, at::kBool);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t hidden = any(0, tokens);  // perhaps all tokens
      layout.mask.key_padding[row].narrow(0, any(0, 2) == 0 ? 0 : tokens - hidden, hidden).fill_(false);
    }
  }
  if (any(0, 1) == 0) {
    layout.options.window = any(1, tokens + 2);
  }
  if (any(0, 1) == 0) {
    layout.options.sinks = at::randn({layout.shape.query_heads}, at::kDouble) * 2;
  }
  if (any(0, 2) == 0) {
    layout.options.scale = 0.3;
  }
  return layout;
}

// Compares values, and gradients of q, k, v and sinks. float64 may differ by 1e-12 of the largest number or of one,
// whichever is more: the rounding of sums of some hundred terms of about one, even if the sum itself is small (a query
// that sees one key has no gradient). bfloat16 may differ by four roundings: of weights, of their gradients, and with
// sinks twice of the output. float32 may differ by 1e-4: a GPU adds up products of TF32 parts, which keep 20 bits.
void expect_masked_form(
    const Layout& layout,
    const std::string& what,
    const std::function<at::Tensor(const Tensors&)>& form,
    at::ScalarType type = at::kDouble) {
  const Shape& s = layout.shape;
  Tensors inputs = {
      random_tensor({s.batch, s.queries, s.query_heads, s.size}, type),
      random_tensor({s.batch, s.keys, s.key_heads, s.size}, type),
      random_tensor({s.batch, s.keys, s.key_heads, s.value_size}, type)};
  if (layout.options.sinks.defined()) {
    inputs.push_back(layout.options.sinks.to(type));
  }
  Tensors wide;
  for (const at::Tensor& input : inputs) {
    wide.push_back(input.to(at::kDouble));
  }
  const Operator masked = [&](const Tensors& in) -> Tensors {
    AttentionOptions options = layout.options;
    options.sinks = in.size() > 3 ? in[3] : at::Tensor();
    return {definition(in[0], in[1], in[2], layout.mask, options)};
  };
  const Operator fast = [&](const Tensors& in) -> Tensors { return {form(in)}; };
  const Tensors incoming = {random_tensor({s.batch, s.queries, s.query_heads, s.value_size}, type).to(at::kDouble)};
  const std::vector<bool> frozen(inputs.size());
  const Outcome expected = run(masked, wide, frozen, incoming), actual = run(fast, inputs, frozen, incoming);
  const double allowed = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-4 : 4.0 / 128;
  const auto expect_close = [&](const std::string& name, const at::Tensor& found, const at::Tensor& wanted) {
    ASSERT_EQ(found.sizes(), wanted.sizes()) << layout.what << ", " << what << ", " << name;
    const double largest = std::max(1.0, wanted.abs().max().item<double>());
    EXPECT_LE((found.to(at::kDouble) - wanted).abs().max().item<double>(), allowed * largest)
        << layout.what << ", " << what << ", " << name;
  };
  expect_close("output", actual.values[0].detach(), expected.values[0].detach());
  for (size_t i = 0; i < inputs.size(); ++i) {
    expect_close("gradient " + std::to_string(i), actual.gradients[i], expected.gradients[i]);
  }
  const at::NoGradGuard no_grad;
  expect_close("output without gradients", form(inputs), expected.values[0].detach());
}

std::function<at::Tensor(const Tensors&)> variable_length_form(
    const Layout& layout, const VariableLengthKernel& kernel) {
  return [&layout, &kernel](const Tensors& in) {
    AttentionOptions options = layout.options;
    options.sinks = in.size() > 3 ? in[3] : at::Tensor();
    return variable_length_attention(in[0], in[1], in[2], layout.sequences(), layout.mask.key_padding, options, kernel);
  };
}

TEST(VariableLengthAttention, EqualsTheMaskedFormOnRandomLayouts) {
  for (int seed = 0; seed < 200; ++seed) {
    at::manual_seed(seed);
    const Layout layout = random_layout(seed);
    ASSERT_TRUE(cumulative_lengths_of(layout.mask, layout.shape.batch, layout.shape.keys).has_value()) << layout.what;
    expect_masked_form(layout, "sequence by sequence", variable_length_form(layout, reference::kVariableLength));
    flash_calls = {};
    expect_masked_form(layout, "FlashAttention", variable_length_form(layout, kFlash));
    EXPECT_EQ(flash_calls.forward, 2) << "with gradients and without";
    EXPECT_EQ(flash_calls.backward, 1);
    efficient_calls = {};
    expect_masked_form(layout, "memory-efficient attention", variable_length_form(layout, kEfficient));
    EXPECT_GT(efficient_calls.backward, 0);
    EXPECT_EQ(efficient_calls.forward, 2 * efficient_calls.backward);
    const auto called = [&](const Tensors& in) {
      AttentionOptions options = layout.options;
      options.sinks = in.size() > 3 ? in[3] : at::Tensor();
      return attention(in[0], in[1], in[2], layout.mask, options);
    };
    expect_masked_form(layout, "as it is called", called);
    expect_masked_form(layout, "in bfloat16", called, at::kBFloat16);  // in tiles, for 16 tokens or more
  }
}

TEST(VariableLengthAttention, SoftcapsLogitsOnTheCpu) {
  for (int seed = 0; seed < 20; ++seed) {
    at::manual_seed(seed);
    Layout layout = random_layout(seed);
    layout.options.softcap = 1.5;
    expect_masked_form(layout, "softcap", variable_length_form(layout, reference::kVariableLength));
  }
}

TEST(VariableLengthAttention, AcceptsSlicesThatTheKernelsCannotRead) {
  at::manual_seed(1);
  const Layout layout{.shape = {2, 12, 12, 2, 2, 8, 8}, .mask = {}, .options = {.window = 5}, .what = "slices"};
  for (const VariableLengthKernel* kernel : {&kFlash, &kEfficient}) {
    expect_masked_form(layout, "of odd places and strides", [&](const Tensors& in) {
      const auto odd = [](const at::Tensor& x) { return at::cat({x.narrow(-1, 0, 1), x}, -1).narrow(-1, 1, 8); };
      return variable_length_form(layout, *kernel)({odd(in[0]), odd(in[1]), odd(in[2])});
    });
  }
}

// Memory-efficient attention pads the sequences of a call to the length of their row, so one call takes few of them.
TEST(VariableLengthAttention, MergesTheResultsOfManySequences) {
  at::manual_seed(1);
  for (const int64_t sequences : {16, 17, 40}) {
    Layout layout{.shape = {2, 40, 40, 4, 2, 8, 8}, .mask = {}, .options = {.window = 3}, .what = "many"};
    layout.mask.document_ids = at::arange(40, at::kLong).clamp_max(sequences - 1).unsqueeze(0);
    layout.options.sinks = at::randn({4}, at::kDouble);
    efficient_calls = {};
    expect_masked_form(layout, std::to_string(sequences), variable_length_form(layout, kEfficient));
    EXPECT_EQ(efficient_calls.backward, sequences == 16 ? 2 : sequences == 17 ? 4 : 8) << "of 16 sequences each";
  }
}

// Reported on a GPU, where the names of ATen's operators tell nothing about the lengths.
TEST(VariableLengthAttention, ReportsThePairsOfEachSequence) {
  Layout layout{.shape = {2, 30, 30, 4, 2, 8, 12}, .mask = {}, .options = {}, .what = "pairs"};
  layout.mask.document_ids = at::arange(30, at::kLong).ge(10).to(at::kLong).unsqueeze(0);  // 10 and 20 tokens
  for (const bool window : {false, true}) {
    layout.options.window = window ? std::optional<int64_t>(4) : std::nullopt;
    const double pairs = window ? 2 * (10 + 6 * 4 + 10 + 16 * 4) : 2 * (55 + 210);
    for (const VariableLengthKernel* kernel : {&kFlash, &kEfficient}) {
      const auto input = [](int64_t heads, int64_t size) {
        return at::randn({2, 30, heads, size}, at::kDouble).requires_grad_();
      };
      const OperationMeter meter;
      variable_length_form(layout, *kernel)({input(4, 8), input(2, 8), input(2, 12)}).sum().backward();
      EXPECT_EQ(meter.counts().attention_flops, 3 * 2 * pairs * 4 * (8 + 12)) << "forward, and twice that in backward";
    }
  }
}

// No value in padding affects the outputs or gradients of visible tokens, nor the outputs and gradients of padding,
// which are zero.
TEST(VariableLengthAttention, DoesNotPropagateNaNOfPadding) {
  at::manual_seed(1);
  const at::Tensor padding = at::tensor(std::vector<int64_t>{0, 0, 1, 1, 1, 1, 1, 1, 1, 0}).to(at::kBool).unsqueeze(0);
  const at::Tensor hidden = padding.logical_not().view({1, 10, 1, 1});
  Layout layout{.shape = {1, 10, 10, 4, 2, 8, 8}, .mask = {.key_padding = padding}, .options = {}, .what = "NaN"};
  layout.options.sinks = at::randn({4}, at::kDouble);
  const Tensors clean = {
      random_tensor({1, 10, 4, 8}, at::kDouble),
      random_tensor({1, 10, 2, 8}, at::kDouble),
      random_tensor({1, 10, 2, 8}, at::kDouble),
      layout.options.sinks};
  Tensors dirty = clean;
  for (size_t i = 0; i < 3; ++i) {
    dirty[i] = clean[i].masked_fill(hidden, std::numeric_limits<double>::quiet_NaN());
  }
  const Tensors incoming = {at::randn({1, 10, 4, 8}, at::kDouble).masked_fill(hidden, std::nan(""))};
  for (const VariableLengthKernel* kernel : {&reference::kVariableLength, &kFlash, &kEfficient}) {
    const auto form = variable_length_form(layout, *kernel);
    const Operator op = [&](const Tensors& in) -> Tensors { return {form(in)}; };
    const Tensors zeros = {incoming[0].masked_fill(hidden, 0)};
    const Outcome expected = run(op, clean, std::vector<bool>(4), zeros);
    const Outcome actual = run(op, dirty, std::vector<bool>(4), incoming);
    EXPECT_TRUE(at::equal(actual.values[0], expected.values[0]));
    EXPECT_EQ(actual.values[0].masked_select(hidden).abs().sum().item<double>(), 0);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << "gradient " << i;
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(actual.gradients[i].masked_select(hidden).abs().sum().item<double>(), 0) << "gradient " << i;
    }
  }
}

TEST(VariableLengthAttention, FlashAttentionIsUsedWhereItIsSupported) {
  EXPECT_TRUE(flash_takes(at::kBFloat16, 128, 128, {}));
  EXPECT_TRUE(flash_takes(at::kHalf, 192, 128, {.window = 7}));
  EXPECT_TRUE(flash_takes(at::kBFloat16, 256, 250, {}));
  EXPECT_FALSE(flash_takes(at::kBFloat16, 257, 64, {}));
  EXPECT_FALSE(flash_takes(at::kBFloat16, 64, 257, {}));
  EXPECT_FALSE(flash_takes(at::kFloat, 64, 64, {}));
  EXPECT_FALSE(flash_takes(at::kBFloat16, 64, 64, {.softcap = 30}));
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(efficient_takes(type, {.window = 7}));
    EXPECT_FALSE(efficient_takes(type, {.softcap = 30}));
  }
  EXPECT_FALSE(efficient_takes(at::kDouble, {}));
}

// Peak bytes of forward and backward on rows of `tokens` tokens, with documents of 64 tokens.
int64_t peak(
    at::DeviceType device,
    at::ScalarType type,
    int64_t tokens,
    const AttentionOptions& options,
    const VariableLengthKernel* kernel = nullptr) {
  const auto there = at::TensorOptions().device(device);
  const auto input = [&](int64_t heads) { return at::ones({2, tokens, heads, 8}, there.dtype(type)).requires_grad_(); };
  const at::Tensor q = input(4), k = input(2), v = input(2);
  at::Tensor padding = at::ones({2, tokens}, there.dtype(at::kBool));
  padding.narrow(1, tokens - 32, 32).fill_(false);
  const AttentionMask mask = {
      .document_ids = (at::arange(tokens, there.dtype(at::kLong)) / 64).to(at::kLong).unsqueeze(0),
      .key_padding = padding};
  const MemoryMeter meter(device);
  const at::Tensor out =
      kernel == nullptr ? attention(q, k, v, mask, options)
                        : variable_length_attention(
                              q,
                              k,
                              v,
                              {.cumulative_lengths = *cumulative_lengths_of(mask, 2, tokens), .row_length = tokens},
                              padding,
                              options,
                              *kernel);
  out.backward(at::ones_like(out));
  return meter.peak();
}

TEST(VariableLengthAttention, UsesMemoryLinearInTokens) {
  const OnMeta on_meta;
  const std::vector<AttentionOptions> all = {{}, {.window = 50}, {.sinks = at::zeros({4})}};
  for (const auto device : {at::kMeta, at::kCPU}) {
    for (const auto type : all_types()) {
      for (AttentionOptions options : all) {
        if (options.sinks.defined()) {
          options.sinks = options.sinks.to(device, type);
        }
        const int64_t tokens = device == at::kMeta ? 1 << 16 : 1 << 11;
        const int64_t once = peak(device, type, tokens, options);
        EXPECT_LE(static_cast<double>(peak(device, type, 4 * tokens, options)), 4.02 * static_cast<double>(once))
            << device << ' ' << type << ": beyond some bytes that every call has";
        if (device == at::kMeta) {
          EXPECT_LT(once, tokens * tokens / 8) << type << ": a bit for each pair of tokens";
        }
      }
    }
  }
}

TEST(VariableLengthAttention, UsesMemoryLinearInTokensInEachKernel) {
  for (const VariableLengthKernel* kernel : {&kFlash, &kEfficient}) {
    const int64_t tokens = 1 << 11;
    const int64_t once = peak(at::kCPU, at::kDouble, tokens, {.window = 50}, kernel);
    EXPECT_LE(
        static_cast<double>(peak(at::kCPU, at::kDouble, 4 * tokens, {.window = 50}, kernel)),
        4.02 * static_cast<double>(once));
  }
}

TEST(VariableLengthAttention, EqualsItsDefinitionOnAGpu) {
  if (const std::string reason = why_no_gpu(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  for (int seed = 0; seed < 60; ++seed) {
    at::manual_seed(seed);
    Layout layout = random_layout(seed);
    layout.mask.sequence_ends = sequence_ends(layout.mask.document_ids, layout.mask.key_padding);
    const auto there = [](const at::Tensor& x) { return x.defined() ? x.to(at::kCUDA) : x; };
    AttentionMask mask = layout.mask;
    for (at::Tensor* tensor : {&mask.document_ids, &mask.key_padding, &mask.sequence_ends}) {
      *tensor = there(*tensor);
    }
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      expect_masked_form(
          layout,
          "on a GPU",
          [&](const Tensors& in) {
            AttentionOptions options = layout.options;
            options.sinks = in.size() > 3 ? there(in[3]) : at::Tensor();
            return attention(there(in[0]), there(in[1]), there(in[2]), mask, options).to(at::kCPU);
          },
          type);
    }
  }
}

}  // namespace
}  // namespace lehr::ops::test

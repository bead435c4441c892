// Speed of the operators, forward and backward, each compared with its ATen definition in the same run.
//
// "bytes_per_second" counts the bytes that a one-pass kernel must read and write; "FLOP/s" of attention counts the
// matmuls below the causal diagonal.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/embedding/embedding.h"
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"
#include "lehr/ops/global_norm/global_norm.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/matmul/gemm.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/rotary.h"
#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::ops {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<Tensors(const Tensors&)>;

at::Tensor random_leaf(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes).to(type).set_requires_grad(true);
}

// One training pass: forward, then gradients of all inputs.
void forward_backward(benchmark::State& state, const Operator& op, const Tensors& inputs) {
  Tensors incoming;
  for (const at::Tensor& value : op(inputs)) {
    incoming.push_back(at::randn(value.sizes()).to(value.scalar_type()));
  }
  for (auto _ : state) {
    torch::autograd::grad(op(inputs), inputs, incoming, {}, /*create_graph=*/false, /*allow_unused=*/true);
  }
}

void set_bytes(benchmark::State& state, int64_t passes, int64_t elements, at::ScalarType type) {
  state.SetBytesProcessed(state.iterations() * passes * elements * static_cast<int64_t>(c10::elementSize(type)));
}

void set_flops(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] =
      benchmark::Counter(flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void rms_norm_bench(benchmark::State& state, at::ScalarType type, bool fused, int64_t rows, int64_t size) {
  const Tensors inputs = {random_leaf({rows, size}, type), random_leaf({size}, type)};
  forward_backward(
      state,
      [=](const Tensors& in) -> Tensors {
        return {fused ? rms_norm(in[0], in[1], 1e-6) : reference::rms_norm(in[0], in[1], 1e-6)};
      },
      inputs);
  set_bytes(state, 5, rows * size, type);
}

void add_rms_norm_bench(benchmark::State& state, at::ScalarType type, const Operator& op, int64_t rows, int64_t size) {
  forward_backward(
      state, op, {random_leaf({rows, size}, type), random_leaf({rows, size}, type), random_leaf({size}, type)});
  set_bytes(state, 8, rows * size, type);
}

void rotary_bench(benchmark::State& state, at::ScalarType type, bool fused, bool norm) {
  const int64_t tokens = 1024, size = 128;
  const Tensors inputs = {
      random_leaf({1, tokens, 16, size}, type),
      random_leaf({1, tokens, 8, size}, type),
      random_leaf({size}, type),
      random_leaf({size}, type)};
  const at::Tensor cos = at::rand({1, tokens, size});
  const at::Tensor sin = at::rand({1, tokens, size});
  forward_backward(
      state,
      [=](const Tensors& in) -> Tensors {
        at::Tensor q = in[0], k = in[1];
        if (fused && norm) {
          std::tie(q, k) = qk_norm_rotary(q, k, in[2], in[3], 1e-6, cos, sin);
        } else if (fused) {
          std::tie(q, k) = apply_rotary(q, k, cos, sin);
        } else {
          if (norm) {
            q = reference::rms_norm(q, in[2], 1e-6);
            k = reference::rms_norm(k, in[3], 1e-6);
          }
          std::tie(q, k) = reference::apply_rotary(q, k, cos, sin, RotaryStyle::half);
        }
        return {q, k};
      },
      inputs);
  set_bytes(state, norm ? 5 : 4, tokens * 24 * size, type);
}

void silu_mul_bench(benchmark::State& state, at::ScalarType type, bool fused) {
  const Tensors inputs = {random_leaf({1024, 3072}, type), random_leaf({1024, 3072}, type)};
  forward_backward(
      state,
      [=](const Tensors& in) -> Tensors {
        return {fused ? silu_mul(in[0], in[1]) : reference::silu_mul(in[0], in[1])};
      },
      inputs);
  set_bytes(state, 8, 1024 * 3072, type);
}

// The heads of Qwen3-Next. There is no row for the definition, which takes a token at a time.
void gated_delta_rule_bench(benchmark::State& state, at::ScalarType type, int64_t tokens) {
  const Tensors inputs = {
      random_leaf({1, tokens, 16, 128}, type),
      random_leaf({1, tokens, 16, 128}, type),
      random_leaf({1, tokens, 32, 128}, type),
      (-at::rand({1, tokens, 32})).set_requires_grad(true),
      at::rand({1, tokens, 32}).set_requires_grad(true)};
  forward_backward(
      state,
      [](const Tensors& in) -> Tensors {
        return {gated_delta_rule({in[0], in[1], in[2], in[3], in[4]}).output};
      },
      inputs);
}

void linear_cross_entropy_bench(
    benchmark::State& state, at::ScalarType type, bool fused, int64_t rows, int64_t hidden, int64_t vocabulary) {
  const Tensors inputs = {random_leaf({rows, hidden}, type), random_leaf({vocabulary, hidden}, type)};
  const at::Tensor labels = at::randint(vocabulary, {rows}, at::kLong);
  for (auto _ : state) {
    const at::Tensor losses = fused ? linear_cross_entropy(inputs[0], inputs[1], labels)
                                    : reference::linear_cross_entropy(inputs[0], inputs[1], labels, -100);
    losses.mean().backward();
    inputs[0].mutable_grad().reset();
    inputs[1].mutable_grad().reset();
  }
  set_flops(state, 6.0 * static_cast<double>(rows * hidden * vocabulary));
}

void three_matmuls_bench(
    benchmark::State& state, at::ScalarType type, int64_t rows, int64_t hidden, int64_t vocabulary) {
  const at::NoGradGuard no_grad;
  const at::Tensor h = random_leaf({rows, hidden}, type);
  const at::Tensor w = random_leaf({vocabulary, hidden}, type);
  for (auto _ : state) {
    const at::Tensor logits = h.matmul(w.t());
    benchmark::DoNotOptimize(logits.matmul(w));
    benchmark::DoNotOptimize(logits.t().matmul(h));
  }
  set_flops(state, 6.0 * static_cast<double>(rows * hidden * vocabulary));
}

// A matmul of a linear layer's weight (columns, depth): its output, or the gradient of its input or of the weight.
enum class Layout { output, of_input, of_weight };

void matmul_bench(
    benchmark::State& state,
    at::ScalarType type,
    bool lehr,
    Layout layout,
    int64_t rows,
    int64_t columns,
    int64_t depth) {
  at::Tensor a = at::randn({rows, depth}).to(type);
  at::Tensor b = at::randn({depth, columns}).to(type);
  if (layout == Layout::of_weight) {
    a = a.t().contiguous().t();
  } else if (layout == Layout::output) {
    b = b.t().contiguous().t();
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(lehr ? gemm(a, b) : at::mm(a, b));
  }
  set_flops(state, 2.0 * static_cast<double>(rows * columns * depth));
}

struct AttentionShape {
  int64_t batch, tokens, query_heads, key_heads, size;
};

void attention_bench(
    benchmark::State& state,
    at::ScalarType type,
    bool fused,
    AttentionShape s,
    bool training,
    const AttentionOptions& options = {}) {
  const Tensors inputs = {
      random_leaf({s.batch, s.tokens, s.query_heads, s.size}, type),
      random_leaf({s.batch, s.tokens, s.key_heads, s.size}, type),
      random_leaf({s.batch, s.tokens, s.key_heads, s.size}, type)};
  const Operator op = [=](const Tensors& in) -> Tensors {
    return {
        fused ? attention(in[0], in[1], in[2], {}, options) : reference::attention(in[0], in[1], in[2], {}, options)};
  };
  if (training) {
    forward_backward(state, op, inputs);
  } else {
    const at::NoGradGuard no_grad;
    for (auto _ : state) {
      benchmark::DoNotOptimize(op(inputs));
    }
  }
  // Causal: half the FLOPs of 2 matmuls (forward), or of 7 (with backward, which recomputes the scores).
  set_flops(
      state, static_cast<double>(s.batch * s.query_heads * s.tokens * s.tokens * s.size) * (training ? 7.0 : 2.0));
}

void embedding_bench(benchmark::State& state, at::ScalarType type, bool fused) {
  const at::Tensor ids = at::randint(32768, {1024}, at::kLong);
  const Tensors inputs = {random_leaf({32768, 1024}, type)};
  forward_backward(
      state,
      [=](const Tensors& in) -> Tensors { return {fused ? ops::embedding(in[0], ids) : at::embedding(in[0], ids)}; },
      inputs);
  set_bytes(state, 1, 32768 * 1024 + 3 * 1024 * 1024, type);
}

void global_norm_bench(benchmark::State& state, at::ScalarType type, bool fused) {
  const at::NoGradGuard no_grad;
  Tensors tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(at::randn({1 << 20}).to(type));
  }
  for (auto _ : state) {
    if (fused) {
      benchmark::DoNotOptimize(global_norm(tensors));
    } else {
      at::Tensor sum = at::zeros({});
      for (const at::Tensor& tensor : tensors) {
        sum += at::linalg_vector_norm(tensor, 2, {}, false, at::kFloat).square();
      }
      benchmark::DoNotOptimize(sum.sqrt());
    }
  }
  set_bytes(state, 1, 40 << 20, type);
}

template <class Body>
void add(const std::string& name, Body body) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool fused : {false, true}) {
      benchmark::RegisterBenchmark(
          (name + (type == at::kFloat ? " fp32" : " bf16") + (fused ? " lehr" : " ATen")).c_str(),
          [=](benchmark::State& state) { body(state, type, fused); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

void register_all() {
  add("rms_norm 1024x1024", [](auto& s, auto type, bool fused) { rms_norm_bench(s, type, fused, 1024, 1024); });
  add("rms_norm 24576x128", [](auto& s, auto type, bool fused) { rms_norm_bench(s, type, fused, 24576, 128); });
  const Operator one_pass = [](const Tensors& in) -> Tensors {
    const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], 1e-6);
    return {sum, normed};
  };
  const Operator definition = [](const Tensors& in) -> Tensors {
    const auto [sum, normed] = reference::add_rms_norm(in[0], in[1], in[2], 1e-6);
    return {sum, normed};
  };
  const Operator two_calls = [](const Tensors& in) -> Tensors {
    const at::Tensor sum = in[0] + in[1];
    return {sum, rms_norm(sum, in[2], 1e-6)};
  };
  add("add_rms_norm 1024x1024",
      [=](auto& s, auto type, bool fused) { add_rms_norm_bench(s, type, fused ? one_pass : definition, 1024, 1024); });
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    benchmark::RegisterBenchmark(
        type == at::kFloat ? "sum and rms_norm 1024x1024 fp32" : "sum and rms_norm 1024x1024 bf16",
        [=](benchmark::State& s) { add_rms_norm_bench(s, type, two_calls, 1024, 1024); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  add("rotary 1024x(16+8)x128", [](auto& s, auto type, bool fused) { rotary_bench(s, type, fused, false); });
  add("qk_norm_rotary 1024x(16+8)x128", [](auto& s, auto type, bool fused) { rotary_bench(s, type, fused, true); });
  add("silu_mul 1024x3072", [](auto& s, auto type, bool fused) { silu_mul_bench(s, type, fused); });
  add("embedding 1024 of 32768x1024", [](auto& s, auto type, bool fused) { embedding_bench(s, type, fused); });
  add("global_norm 40M", [](auto& s, auto type, bool fused) { global_norm_bench(s, type, fused); });
  for (const auto& [rows, columns, depth] : {std::tuple{2048, 768, 256}, {1024, 3072, 1024}, {1024, 1024, 3072}}) {
    for (const auto& [layout, what] :
         {std::pair{Layout::output, "output"},
          {Layout::of_input, "gradient of input"},
          {Layout::of_weight, "gradient of weight"}}) {
      add(fmt::format("matmul {}x{}x{} {}", rows, columns, depth, what),
          [=, m = rows, n = columns, k = depth, which = layout](auto& s, auto type, bool fused) {
            matmul_bench(s, type, fused, which, m, n, k);
          });
    }
  }
  for (const AttentionShape shape :
       {AttentionShape{1, 512, 16, 8, 128}, {1, 1024, 16, 8, 128}, {1, 2048, 16, 8, 128}, {2, 1024, 8, 4, 64}}) {
    for (const bool training : {false, true}) {
      const std::string name = "attention B" + std::to_string(shape.batch) + " S" + std::to_string(shape.tokens) +
                               " heads " + std::to_string(shape.query_heads) + "/" + std::to_string(shape.key_heads) +
                               " x " + std::to_string(shape.size) + (training ? " fwd+bwd" : " forward");
      add(name, [=](auto& s, auto type, bool fused) { attention_bench(s, type, fused, shape, training); });
    }
  }
  const std::pair<const char*, AttentionOptions> variants[] = {
      {"window 256", {.window = 256}}, {"softcap 50", {.softcap = 50.0}}, {"sinks", {.sinks = at::zeros({16})}}};
  for (const auto& [what, options] : variants) {
    add(std::string("attention B1 S1024 heads 16/8 x 128, ") + what + " fwd+bwd",
        [opt = options](auto& s, auto type, bool fused) {
          attention_bench(s, type, fused, {1, 1024, 16, 8, 128}, true, opt);
        });
  }
  for (const int64_t tokens : {1024, 4096, 16384}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      benchmark::RegisterBenchmark(
          fmt::format(
              "gated_delta_rule B1 S{} heads 16/32 x 128 fwd+bwd {} lehr", tokens, type == at::kFloat ? "fp32" : "bf16")
              .c_str(),
          [=](benchmark::State& s) { gated_delta_rule_bench(s, type, tokens); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  for (const int64_t vocabulary : {8192, 32768, 151936}) {
    const int64_t hidden = vocabulary == 8192 ? 256 : 1024;
    const std::string name = "1024x" + std::to_string(hidden) + "x" + std::to_string(vocabulary);
    add("linear_cross_entropy " + name,
        [=](auto& s, auto type, bool fused) { linear_cross_entropy_bench(s, type, fused, 1024, hidden, vocabulary); });
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      benchmark::RegisterBenchmark(
          ("three matmuls alone " + name + (type == at::kFloat ? " fp32" : " bf16")).c_str(),
          [=](benchmark::State& s) { three_matmuls_bench(s, type, 1024, hidden, vocabulary); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

[[maybe_unused]] const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace lehr::ops

// The calls that the kernels support, and their division into jobs for threads.
#include "lehr/ops/attention/attention_cpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/memory/caching_allocator.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/attention/attention_meta.h"
#include "lehr/ops/attention/kernels.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops::cpu {

namespace {

template <class T>
AttentionCall<T> attention_call(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const AttentionPlan& plan) {
  return {
      .q = elements<T>(q),
      .k = elements<T>(k),
      .v = elements<T>(v),
      .out = elements<T>(out),
      .lse = elements<float>(lse),
      .first_keys = elements<int32_t>(plan.first_keys),
      .sinks = elements<float>(plan.sinks),
      .batch = q.size(0),
      .queries = q.size(1),
      .keys = k.size(1),
      .query_heads = q.size(2),
      .key_heads = k.size(2),
      .size = q.size(3),
      .value_size = v.size(3),
      .window = plan.window,
      .scale = static_cast<float>(plan.scale),
      .softcap = static_cast<float>(plan.softcap)};
}

// The scratch memory of one thread, in floats.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : memory_(static_cast<size_t>(floats) * sizeof(float)) {}
  float* data() const { return static_cast<float*>(memory_.data()); }

 private:
  ScratchMemory memory_;
};

// Calls body with an element of the dtype; there are no float64 kernels.
template <class Body>
void run_attention(const at::Tensor& like, const Body& body) {
  like.scalar_type() == at::kFloat ? body(float{}, cpu_kernels<AttentionKernels<float>>())
                                   : body(Bf16{}, cpu_kernels<AttentionKernels<Bf16>>());
}
}  // namespace

bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  return supports(q) && q.scalar_type() != at::kDouble && mask.causal && !mask.allowed.defined() &&
         !mask.bias.defined() && q.size(1) >= kFewQueries && q.numel() > 0 && k.numel() > 0 && v.numel() > 0;
}

at::Tensor first_keys_of(const at::Tensor& cumulative_lengths, int64_t batch, int64_t keys) {
  if (!cumulative_lengths.defined()) {
    return {};
  }
  at::Tensor first_keys = at::empty({batch, keys}, cumulative_lengths.options());
  if (!cumulative_lengths.is_meta()) {
    const auto* border = elements<int32_t>(cumulative_lengths);
    auto* first = elements<int32_t>(first_keys);
    invariant(
        border[cumulative_lengths.size(0) - 1] == batch * keys,
        "attention: cumulative lengths of {} keys, but there are {} x {}",
        border[cumulative_lengths.size(0) - 1],
        batch,
        keys);
    for (int64_t i = 0; i + 1 < cumulative_lengths.size(0); ++i) {
      std::fill(first + border[i], first + border[i + 1], static_cast<int32_t>(border[i] % keys));
    }
  }
  return first_keys;
}

namespace {
// Returns causal_attention_flops for the sequences of the plan.
double flops_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionPlan& plan) {
  if (!plan.first_keys.defined() || plan.first_keys.is_meta()) {
    return causal_attention_flops(q, k, v, plan.window);
  }
  const int64_t keys = k.size(1);
  const auto* first_keys = elements<int32_t>(plan.first_keys);  // (B, S)
  double pairs = 0;
  for (int64_t row = 0; row < q.size(0); ++row) {
    for (int64_t position = keys - q.size(1); position < keys; ++position) {
      const int64_t seen = position + 1 - first_keys[row * keys + position];
      pairs += static_cast<double>(std::min(seen, plan.window));
    }
  }
  return 2 * pairs * static_cast<double>(q.size(2) * (q.size(3) + v.size(3)));
}
}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionPlan& plan, bool keep) {
  at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  at::Tensor lse = keep ? at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)) : at::Tensor();
  report_attention(flops_of(q, k, v, plan));
  report_moved({q, k, v, out, lse});
  run_attention(q, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const AttentionCall<T> call = attention_call<T>(q, k, v, out, lse, plan);
    const int64_t jobs = call.batch * call.key_heads;
    const int64_t parts =
        std::max<int64_t>(1, std::min(blocks_of(call.queries), (2 * num_threads() + jobs - 1) / jobs));
    run_kernel(q, 0, jobs * parts, 1, [&](int64_t first, int64_t last) {
      const Scratch scratch(attention_forward_scratch(call));
      for (int64_t i = first; i < last; ++i) {
        kernels.forward(call, scratch.data(), i / parts, i % parts, parts);
      }
    });
  });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const AttentionPlan& plan) {
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  report_attention(2 * flops_of(q, k, v, plan));
  report_moved({q, k, v, out, dout, lse, dq, dk, dv});
  run_attention(q, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const AttentionBackwardCall<T> call{
        .forward = attention_call<T>(q, k, v, out, lse, plan),
        .dout = elements<T>(dout),
        .dq = elements<T>(dq),
        .dk = elements<T>(dk),
        .dv = elements<T>(dv)};
    run_kernel(q, 0, q.size(0) * k.size(2), 1, [&](int64_t first, int64_t last) {
      const Scratch scratch(attention_backward_scratch(call.forward));
      for (int64_t job = first; job < last; ++job) {
        kernels.backward(call, scratch.data(), job);
      }
    });
  });
  return {dq, dk, dv};
}

}  // namespace lehr::ops::cpu

// Causal attention on the CPU: which calls the kernels take, and their jobs on threads.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <unordered_set>

#include "lehr/base/operation_meter.h"
#include "lehr/base/tensor_memory.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/pair_product.h"

namespace lehr::ops::cpu {

namespace {
constexpr int64_t kFewQueries = 16;  // below, most of a 64-row tile would be padding

template <class T>
AttentionCall<T> attention_call(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& log_sum,
    const AttentionPlan& plan) {
  return {
      .q = elements<T>(q),
      .k = elements<T>(k),
      .v = elements<T>(v),
      .out = elements<T>(out),
      .log_sum = elements<float>(log_sum),
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
      .softcap = static_cast<float>(plan.softcap),
      .pair_product = std::is_same_v<T, Bf16> && wants_pair_product() && PairProducts::available()
                          ? PairProducts::product
                          : nullptr};
}

// What one thread needs for a call's jobs: memory, in floats, and maybe the CPU's tile registers.
class Scratch {
 public:
  Scratch(int64_t floats, PairProduct product) : memory_(static_cast<size_t>(floats) * sizeof(float)) {
    if (product != nullptr) {
      products_.emplace();
    }
  }
  float* data() const { return static_cast<float*>(memory_.data()); }

 private:
  ScratchMemory memory_;
  std::optional<PairProducts> products_;
};

// Of scores and weighted values in causal order. Documents are in one piece and count as one.
double causal_flops(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window) {
  const int64_t last = k.size(1), first = last - q.size(1) + 1;  // keys that a query sees, without a window
  const int64_t most = std::clamp(window, first - 1, last);
  const double pairs = static_cast<double>((first + most) * (most - first + 1)) / 2 +
                       static_cast<double>(last - most) * static_cast<double>(std::min(window, last));
  return 2 * pairs * static_cast<double>(q.size(0) * q.size(2) * (q.size(3) + v.size(3)));
}

// Runs with the type's kernels; float64 has none.
template <class Body>
void with_attention_type(at::ScalarType type, const Body& body) {
  type == at::kFloat ? body(float{}) : body(Bf16{});
}
}  // namespace

bool supports_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  return supports(q) && q.scalar_type() != at::kDouble && mask.causal && !mask.key_padding.defined() &&
         !mask.allowed.defined() && !mask.bias.defined() && q.size(1) >= kFewQueries && q.numel() > 0 &&
         k.numel() > 0 && v.numel() > 0;
}

std::optional<at::Tensor> first_keys_of(const at::Tensor& document_ids, int64_t batch, int64_t keys) {
  if (!document_ids.defined()) {
    return at::Tensor();
  }
  const at::Tensor ids = document_ids.to(at::kLong).expand({batch, keys}).contiguous();
  at::Tensor first_keys = at::empty({batch, keys}, ids.options().dtype(at::kInt));
  if (document_ids.is_meta()) {
    return first_keys;
  }
  const int64_t* id = elements<int64_t>(ids);
  auto* first = elements<int32_t>(first_keys);
  for (int64_t row = 0; row < batch; ++row) {
    std::unordered_set<int64_t> seen;
    int32_t start = 0;
    for (int64_t i = 0; i < keys; ++i) {
      const int64_t at = row * keys + i;
      if (i == 0 || id[at] != id[at - 1]) {
        if (!seen.insert(id[at]).second) {
          return std::nullopt;  // a document in two pieces
        }
        start = static_cast<int32_t>(i);
      }
      first[at] = start;
    }
  }
  return first_keys;
}

std::tuple<at::Tensor, at::Tensor> attention_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionPlan& plan, bool keep) {
  at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  at::Tensor log_sum =
      keep ? at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)) : at::Tensor();
  report_attention(causal_flops(q, k, v, plan.window));
  report_moved({q, k, v, out, log_sum});
  with_attention_type(q.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const AttentionCall<T> call = attention_call<T>(q, k, v, out, log_sum, plan);
    const int64_t jobs = call.batch * call.key_heads;
    const int64_t parts =
        std::max<int64_t>(1, std::min(blocks_of(call.queries), (2 * num_threads() + jobs - 1) / jobs));
    run_kernel(q, 0, jobs * parts, 1, [&](int64_t first, int64_t last) {
      const Scratch scratch(attention_forward_scratch(call), call.pair_product);
      for (int64_t i = first; i < last; ++i) {
        kernel.attention_forward(call, scratch.data(), i / parts, i % parts, parts);
      }
    });
  });
  return {out, log_sum};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& log_sum,
    const AttentionPlan& plan) {
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  report_attention(2 * causal_flops(q, k, v, plan.window));
  report_moved({q, k, v, out, dout, log_sum, dq, dk, dv});
  with_attention_type(q.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const AttentionBackwardCall<T> call{
        .forward = attention_call<T>(q, k, v, out, log_sum, plan),
        .dout = elements<T>(dout),
        .dq = elements<T>(dq),
        .dk = elements<T>(dk),
        .dv = elements<T>(dv)};
    run_kernel(q, 0, q.size(0) * k.size(2), 1, [&](int64_t first, int64_t last) {
      const Scratch scratch(attention_backward_scratch(call.forward), call.forward.pair_product);
      for (int64_t job = first; job < last; ++job) {
        kernel.attention_backward(call, scratch.data(), job);
      }
    });
  });
  return {dq, dk, dv};
}

}  // namespace lehr::ops::cpu

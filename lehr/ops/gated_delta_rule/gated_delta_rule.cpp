// The gated delta rule: checks, the autograd function, and the choice of CPU, GPU or definition.
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "lehr/base/autograd_function.h"
#include "lehr/memory/caching_allocator.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/gated_delta_rule/cuda.h"
#include "lehr/ops/gated_delta_rule/kernels.h"
#include "lehr/ops/recompute.h"

namespace lehr::ops {

namespace {
using cpu::elements;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The chunks of all rows, in order.
struct Chunks {
  std::vector<DeltaChunk> list;
  std::vector<int64_t> first{0};  // of each row, and the end
  int64_t most = 0;               // in a row
};

Chunks chunks_of(const at::Tensor& cumulative_lengths, int64_t rows, int64_t tokens) {
  Chunks chunks;
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kDeltaChunk) {
      chunks.list.push_back({.first = at % tokens, .count = std::min(end - at, kDeltaChunk), .begins = at == begin});
    }
    if (end > begin && end % tokens == 0) {
      chunks.first.push_back(static_cast<int64_t>(chunks.list.size()));
    }
  };
  if (cumulative_lengths.defined() && !cumulative_lengths.is_meta()) {
    const auto* const border = cumulative_lengths.const_data_ptr<int32_t>();
    for (int64_t i = 0; i + 1 < cumulative_lengths.numel(); ++i) {
      add(border[i], border[i + 1]);
    }
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      add(row * tokens, (row + 1) * tokens);
    }
  }
  for (size_t row = 0; row + 1 < chunks.first.size(); ++row) {
    chunks.most = std::max(chunks.most, chunks.first[row + 1] - chunks.first[row]);
  }
  return chunks;
}

template <class T>
DeltaCall<T> call_of(const GatedDeltaInputs& in, const Chunks& chunks) {
  return {
      .query = elements<T>(in.query),
      .key = elements<T>(in.key),
      .value = elements<T>(in.value),
      .decay = elements<Wide<T>>(in.decay),
      .beta = elements<Wide<T>>(in.beta),
      .initial = elements<Wide<T>>(in.initial_state),
      .chunks = chunks.list.data(),
      .first_chunks = chunks.first.data(),
      .tokens = in.query.size(1),
      .key_heads = in.query.size(2),
      .group = in.value.size(2) / in.query.size(2),
      .size = in.query.size(3),
      .value_size = in.value.size(3),
      .corrects = in.update == StateUpdate::correct};
}

// FLOPs of the matmuls of forward. With the state: its update, corrections and outputs. Triangles of a chunk: q k^T
// and, for corrections, k k^T in each key head; in each value head the system (corrections) and the mix (outputs).
double flops_of(const GatedDeltaInputs& in, bool with_output = true) {
  const auto tokens = static_cast<double>(in.query.size(0) * in.query.size(1));
  const auto size = static_cast<double>(in.query.size(3)), value_size = static_cast<double>(in.value.size(3));
  const auto key_heads = static_cast<double>(in.query.size(2)), value_heads = static_cast<double>(in.value.size(2));
  const double corrections = in.update == StateUpdate::correct ? 1 : 0, outputs = with_output ? 1 : 0;
  const double with_states = size * (1 + corrections + outputs) + kDeltaChunk / 2 * (corrections + outputs);
  return 2 * tokens * (value_heads * value_size * with_states + key_heads * size * kDeltaChunk / 2 * (1 + corrections));
}

template <class Body>
void run_jobs(const GatedDeltaInputs& in, size_t scratch_bytes, const Body& body) {
  cpu::run_kernel(in.query, 0, in.query.size(0) * in.query.size(2), 1, [&](int64_t first, int64_t last) {
    const ScratchMemory scratch(scratch_bytes);
    for (int64_t job = first; job < last; ++job) {
      body(scratch.data(), job);
    }
  });
}

GatedDelta forward_of(const GatedDeltaInputs& in, bool with_output = true) {
  if (cuda::on_gpu(in.query)) {
    return cuda::gated_delta_rule(in, with_output);
  }
  GatedDelta result{
      .output = with_output ? at::empty_like(in.value) : at::Tensor(),
      .final_state =
          at::empty({in.query.size(0), in.value.size(2), in.query.size(3), in.value.size(3)}, in.decay.options())};
  report_attention(flops_of(in, with_output));
  report_moved({in.query, in.key, in.value, in.decay, in.beta, result.output});
  const Chunks chunks = chunks_of(in.cumulative_lengths, in.query.size(0), in.query.size(1));
  cpu::run<DeltaKernels>(in.query, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto call = call_of<T>(in, chunks);
    const size_t bytes = static_cast<size_t>(delta_forward_scratch(call)) * sizeof(Wide<T>);
    run_jobs(in, bytes, [&](void* scratch, int64_t job) {
      kernels.forward(
          call, elements<T>(result.output), elements<Wide<T>>(result.final_state), static_cast<Wide<T>*>(scratch), job);
    });
  });
  return result;
}

// Gradients in the order of the fields of GatedDeltaInputs.
variable_list backward_of(const GatedDeltaInputs& in, const at::Tensor& doutput, const at::Tensor& dfinal) {
  if (cuda::on_gpu(in.query)) {
    return cuda::gated_delta_rule_backward(in, doutput, dfinal);
  }
  const auto like = [](const at::Tensor& tensor) { return tensor.defined() ? at::empty_like(tensor) : at::Tensor(); };
  variable_list gradients{
      like(in.query), like(in.key), like(in.value), like(in.decay), like(in.beta), like(in.initial_state)};
  report_attention(3 * flops_of(in));
  report_moved({in.query, in.key, in.value, in.decay, in.beta, doutput, gradients[0], gradients[1], gradients[2]});
  const Chunks chunks = chunks_of(in.cumulative_lengths, in.query.size(0), in.query.size(1));
  cpu::run<DeltaKernels>(in.query, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const DeltaBackwardCall<T> call{
        .forward = call_of<T>(in, chunks),
        .doutput = elements<T>(doutput),
        .dfinal = elements<Wide<T>>(dfinal),
        .dquery = elements<T>(gradients[0]),
        .dkey = elements<T>(gradients[1]),
        .dvalue = elements<T>(gradients[2]),
        .ddecay = elements<Wide<T>>(gradients[3]),
        .dbeta = elements<Wide<T>>(gradients[4]),
        .dinitial = elements<Wide<T>>(gradients[5])};
    const size_t bytes = static_cast<size_t>(delta_backward_scratch(call.forward, chunks.most)) * sizeof(Wide<T>);
    run_jobs(
        in, bytes, [&](void* scratch, int64_t job) { kernels.backward(call, static_cast<Wide<T>*>(scratch), job); });
  });
  return gradients;
}

struct GatedDeltaFunction : AutogradFunction<GatedDeltaFunction> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const at::Tensor& decay,
      const at::Tensor& beta,
      const std::optional<at::Tensor>& initial_state,
      const std::optional<at::Tensor>& cumulative_lengths,
      StateUpdate update) {
    const GatedDeltaInputs in{
        query,
        key,
        value,
        decay,
        beta,
        initial_state.value_or(at::Tensor()),
        cumulative_lengths.value_or(at::Tensor()),
        update};
    in.save(ctx);
    ctx->set_materialize_grads(false);
    const GatedDelta result = forward_of(in);
    return {result.output, result.final_state};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::attention, "lehr::gated_delta_rule_backward");
    refuse_double_backward("gated_delta_rule");
    const GatedDeltaInputs in = GatedDeltaInputs::saved(ctx, ctx->get_saved_variables());
    const at::Tensor doutput = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(in.value);
    auto gradients = backward_of(in, doutput, grads[1].defined() ? grads[1].contiguous() : at::Tensor());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined() && !ctx->needs_input_grad(i)) {
        gradients[i].reset();
      }
    }
    gradients.resize(8);  // cumulative_lengths, update
    return gradients;
  }
};

void check(const GatedDeltaInputs& in) {
  const at::Tensor &q = in.query, &k = in.key, &v = in.value;
  const auto type = q.scalar_type(), wide = cpu::wide_type(type);
  require(
      q.dim() == 4 && q.sizes() == k.sizes() && v.dim() == 4 && v.size(0) == q.size(0) && v.size(1) == q.size(1) &&
          q.size(2) > 0 && v.size(2) % q.size(2) == 0 && q.is_floating_point() && k.scalar_type() == type &&
          v.scalar_type() == type,
      "gated_delta_rule: expected query and key (B, T, Hk, K) and value (B, T, Hv, V) of one type, with Hv a multiple "
      "of Hk, found {}, {} and {}",
      shape_of(q),
      shape_of(k),
      shape_of(v));
  const std::vector<int64_t> heads{q.size(0), q.size(1), v.size(2)};
  for (const auto& [name, tensor] : {std::pair("decay", in.decay), std::pair("beta", in.beta)}) {
    require(
        tensor.sizes() == heads && tensor.scalar_type() == wide,
        "gated_delta_rule: {}: expected (B, T, Hv) {}, found {} {}",
        name,
        c10::toString(wide),
        c10::toString(tensor.scalar_type()),
        shape_of(tensor));
  }
  const std::vector<int64_t> state{q.size(0), v.size(2), q.size(3), v.size(3)};
  require(
      !in.initial_state.defined() || (in.initial_state.sizes() == state && in.initial_state.scalar_type() == wide),
      "gated_delta_rule: initial_state: expected (B, Hv, K, V) {}, found {}",
      c10::toString(wide),
      in.initial_state.defined() ? shape_of(in.initial_state) : "");
  require(
      !in.cumulative_lengths.defined() ||
          (in.cumulative_lengths.device() == q.device() && in.cumulative_lengths.scalar_type() == at::kInt),
      "gated_delta_rule: cumulative_lengths: expected int32 on the device of query, found another tensor");
}

bool has_kernels(const GatedDeltaInputs& in) {
  return cuda::on_gpu(in.query) ? cuda::supports_gated_delta(in) : cpu::supports(in.query) && in.query.numel() > 0;
}

GatedDeltaInputs contiguous(const GatedDeltaInputs& in) {
  const auto packed = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : tensor; };
  return {
      packed(in.query),
      packed(in.key),
      packed(in.value),
      packed(in.decay),
      packed(in.beta),
      packed(in.initial_state),
      in.cumulative_lengths,
      in.update};
}

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;  // autograd takes no undefined tensor as an argument
}
}  // namespace

GatedDelta gated_delta_rule(const GatedDeltaInputs& in) {
  if (OperatorWatch* watch = operator_watch()) {
    return {
        .output = watch->state(
            {.name = "gated_delta_rule",
             .inputs = {{"q", in.query}, {"k", in.key}, {"v", in.value}, {"decay", in.decay}, {"beta", in.beta}},
             .shape = in.value.sizes().vec(),
             .dtype = in.value.scalar_type(),
             .like = 2}),
        .final_state = {}};
  }
  const OperatorScope scope(OperatorKind::attention, "lehr::gated_delta_rule");
  check(in);
  if (!has_kernels(in)) {
    return reference::gated_delta_rule(in);
  }
  const GatedDeltaInputs inputs = contiguous(in);
  if (!will_differentiate(in.query, in.key, in.value, in.decay, in.beta, in.initial_state)) {
    return forward_of(inputs);
  }
  const variable_list results = GatedDeltaFunction::apply(
      inputs.query,
      inputs.key,
      inputs.value,
      inputs.decay,
      inputs.beta,
      if_defined(inputs.initial_state),
      if_defined(inputs.cumulative_lengths),
      inputs.update);
  return {.output = results[0], .final_state = results[1]};
}

at::Tensor gated_delta_final_state(const GatedDeltaInputs& in) {
  const OperatorScope scope(OperatorKind::attention, "lehr::gated_delta_final_state");
  const at::NoGradGuard no_grad;
  check(in);
  return has_kernels(in) ? forward_of(contiguous(in), /*with_output=*/false).final_state
                         : reference::gated_delta_rule(in).final_state;
}

std::vector<at::Tensor> gated_delta_rule_backward(
    const GatedDeltaInputs& in, const at::Tensor& doutput, const at::Tensor& dfinal_state) {
  check(in);
  if (has_kernels(in)) {
    return backward_of(
        contiguous(in), doutput.contiguous(), dfinal_state.defined() ? dfinal_state.contiguous() : dfinal_state);
  }
  const at::AutoGradMode differentiates(true);
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.detach().requires_grad_() : tensor;
  };
  const GatedDeltaInputs own{
      leaf(in.query),
      leaf(in.key),
      leaf(in.value),
      leaf(in.decay),
      leaf(in.beta),
      leaf(in.initial_state),
      in.cumulative_lengths,
      in.update};
  const GatedDelta result = reference::gated_delta_rule(own);
  variable_list leaves{own.query, own.key, own.value, own.decay, own.beta};
  if (own.initial_state.defined()) {
    leaves.push_back(own.initial_state);
  }
  const auto incoming = dfinal_state.defined() ? dfinal_state : at::zeros_like(result.final_state);
  auto gradients = torch::autograd::grad({result.output, result.final_state}, leaves, {doutput, incoming});
  gradients.resize(6);
  return gradients;
}

void GatedDeltaInputs::save(AutogradContext* ctx, const std::vector<at::Tensor>& more) const {
  variable_list all{
      save_or_recompute(ctx, "query", query),
      save_or_recompute(ctx, "key", key),
      save_or_recompute(ctx, "value", value),
      decay,
      beta,
      initial_state,
      cumulative_lengths};
  all.insert(all.end(), more.begin(), more.end());
  ctx->save_for_backward(std::move(all));
  ctx->saved_data["corrects"] = update == StateUpdate::correct;
}

GatedDeltaInputs GatedDeltaInputs::saved(AutogradContext* ctx, const std::vector<at::Tensor>& variables) {
  return {
      saved_or_recomputed(ctx, "query", variables[0]),
      saved_or_recomputed(ctx, "key", variables[1]),
      saved_or_recomputed(ctx, "value", variables[2]),
      variables[3],
      variables[4],
      variables[5],
      variables[6],
      ctx->saved_data["corrects"].toBool() ? StateUpdate::correct : StateUpdate::add};
}

}  // namespace lehr::ops

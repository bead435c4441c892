// Attention: checks, dispatch and the autograd function.
#include "lehr/ops/attention.h"

#include <cmath>

#include "lehr/ops/autograd.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/reference.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What is the same for all queries of a call. A struct, because autograd takes no undefined tensor as an argument.
struct CausalPlan {
  at::Tensor first_keys;
  double scale;
};

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CausalPlan& plan) {
    auto [out, log_sum] = cpu::attention_forward(q, k, v, plan.first_keys, plan.scale, true);
    ctx->save_for_backward({q, k, v, out, log_sum, plan.first_keys});
    ctx->saved_data["scale"] = plan.scale;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("attention");
    const auto saved = ctx->get_saved_variables();
    auto [dq, dk, dv] = cpu::attention_backward(
        grads[0].contiguous(),
        saved[0],
        saved[1],
        saved[2],
        saved[3],
        saved[4],
        saved[5],
        ctx->saved_data["scale"].toDouble());
    return {dq, dk, dv, {}};
  }
};

void check_row_mask(const char* name, const at::Tensor& mask, const at::Tensor& k) {
  require(
      !mask.defined() ||
          (mask.dim() == 2 && (mask.size(0) == 1 || mask.size(0) == k.size(0)) && mask.size(1) == k.size(1)),
      "attention: expected {} (B or 1, S) = {}x{}, found {}",
      name,
      k.size(0),
      k.size(1),
      mask.defined() ? shape_of(mask) : "");
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  require(
      q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) && k.sizes() == v.sizes() &&
          q.size(3) == k.size(3) && k.size(2) > 0 && q.size(2) % k.size(2) == 0,
      "attention: expected q (B, T, Hq, D), k and v (B, S, Hkv, D) with Hkv dividing Hq, found {}, {} and {}",
      shape_of(q),
      shape_of(k),
      shape_of(v));
  require(
      q.size(1) <= k.size(1),
      "attention: the queries are the last of the keys' positions; found {} queries, {} keys",
      q.size(1),
      k.size(1));
  require(
      q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() && q.is_floating_point(),
      "attention: expected q, k and v of one floating type, found {}, {} and {}",
      c10::toString(q.scalar_type()),
      c10::toString(k.scalar_type()),
      c10::toString(v.scalar_type()));
  check_row_mask("document_ids", mask.document_ids, k);
  check_row_mask("key_padding", mask.key_padding, k);
  require(
      !mask.key_padding.defined() || mask.key_padding.scalar_type() == at::kBool,
      "attention: expected bool key_padding, found {}",
      mask.key_padding.defined() ? c10::toString(mask.key_padding.scalar_type()) : "");
}
}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check(q, k, v, mask);
  if (cpu::supports_attention(q, k, mask)) {
    if (const auto first_keys = cpu::first_keys_of(mask.document_ids, k.size(0), k.size(1))) {
      const CausalPlan plan{*first_keys, mask.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))))};
      if (will_differentiate(q, k, v)) {
        return AttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), plan);
      }
      return std::get<0>(
          cpu::attention_forward(q.contiguous(), k.contiguous(), v.contiguous(), plan.first_keys, plan.scale, false));
    }
  }
  return reference::attention(q, k, v, mask);
}

}  // namespace lehr::ops

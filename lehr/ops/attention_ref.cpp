// Attention, the definition: ATen's scaled_dot_product_attention with the mask spelled out.
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "lehr/ops/reference.h"

namespace lehr::ops::reference {

namespace {
// Bool, broadcasts to (B, Hq, T, S); undefined if every query may see every key.
at::Tensor allowed_keys(const AttentionMask& mask, int64_t queries, int64_t keys, at::Device device) {
  at::Tensor allowed;
  const auto restrict_to = [&](const at::Tensor& more) {
    allowed = allowed.defined() ? allowed.logical_and(more) : more.to(at::kBool);
  };
  if (mask.causal) {
    const at::Tensor key = at::arange(keys, at::TensorOptions(at::kLong).device(device));
    restrict_to(key <= key.narrow(0, keys - queries, queries).unsqueeze(1));
  }
  if (mask.document_ids.defined()) {
    const at::Tensor own = mask.document_ids.narrow(1, keys - queries, queries);
    restrict_to((own.unsqueeze(2) == mask.document_ids.unsqueeze(1)).unsqueeze(1));  // (B, 1, T, S)
  }
  if (mask.key_padding.defined()) {
    restrict_to(mask.key_padding.unsqueeze(1).unsqueeze(1));  // (B, 1, 1, S)
  }
  if (mask.allowed.defined()) {
    restrict_to(mask.allowed);
  }
  return allowed;
}
}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  const int64_t queries = q.size(1);
  const int64_t keys = k.size(1);
  const bool restricted =
      mask.document_ids.defined() || mask.key_padding.defined() || mask.allowed.defined() || mask.bias.defined();
  const bool plain_causal = mask.causal && !restricted && queries == keys;
  at::Tensor blind;  // queries that may see no key
  std::optional<at::Tensor> attention_bias;
  if (!plain_causal && (restricted || (mask.causal && queries > 1))) {
    at::Tensor allowed = allowed_keys(mask, queries, keys, q.device());
    if (allowed.defined()) {
      // ATen's answer for such rows differs between its kernels, so let them see everything and take the row out after.
      blind = allowed.any(-1, true).logical_not();
      allowed = allowed.logical_or(blind);
    }
    if (mask.bias.defined()) {
      const at::Tensor bias = mask.bias.detach().to(q.scalar_type());
      attention_bias =
          allowed.defined()
              ? at::where(allowed, bias, at::scalar_tensor(-std::numeric_limits<double>::infinity(), bias.options()))
              : bias;
    } else {
      attention_bias = allowed;
    }
    while (attention_bias && attention_bias->dim() < 4) {
      attention_bias = attention_bias->unsqueeze(0);
    }
  }
  const at::Tensor attended = at::scaled_dot_product_attention(
      q.transpose(1, 2),
      k.transpose(1, 2),
      v.transpose(1, 2),
      attention_bias,
      0.0,
      plain_causal,
      mask.scale,
      q.size(2) != k.size(2));  // (B, Hq, T, D)
  const at::Tensor kept = blind.defined() ? attended.masked_fill(blind, 0) : attended;
  return kept.transpose(1, 2);
}

}  // namespace lehr::ops::reference

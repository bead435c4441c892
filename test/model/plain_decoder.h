// A decoder written out in ATen, layer by layer from a list: what a heterogeneous model is held to.
#pragma once

#include <map>
#include <string>

#include "lehr/nn/module.h"
#include "test/model/heterogeneous.h"

namespace lehr::model::test {

using Weights = std::map<std::string, at::Tensor>;

inline at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + kEps).rsqrt() * weight;
}

inline at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  return at::matmul(x, weight.t());
}

/// (B, T, heads, D) turned by its positions 0..T-1.
inline at::Tensor rotated(const at::Tensor& x) {
  const int64_t half = kHeadDim / 2;
  const at::Tensor exponent = at::arange(half, at::kDouble) * 2 / kHeadDim;
  const at::Tensor frequency = at::exp(exponent * -std::log(kRopeBase));
  const at::Tensor angle = at::outer(at::arange(x.size(1), at::kDouble), frequency);  // (T, D/2)
  const at::Tensor cos = angle.cos().unsqueeze(1), sin = angle.sin().unsqueeze(1);    // (T, 1, D/2)
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

inline at::Tensor attention(const at::Tensor& x, Weights& w, const std::string& at, int64_t kv_heads, bool qk_norm) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const auto heads = [&](const char* name, int64_t count) {
    return project(x, w.at(at + name)).view({batch, tokens, count, kHeadDim});
  };
  at::Tensor q = heads("q_proj.weight", kHeads), k = heads("k_proj.weight", kv_heads);
  const at::Tensor v = heads("v_proj.weight", kv_heads);
  if (qk_norm) {
    q = norm(q, w.at(at + "q_norm.weight"));
    k = norm(k, w.at(at + "k_norm.weight"));
  }
  const auto for_all_heads = [&](const at::Tensor& t) {
    return t.repeat_interleave(kHeads / kv_heads, /*dim=*/2).transpose(1, 2);  // (B, Hq, T, D)
  };
  const at::Tensor scores =
      at::matmul(rotated(q).transpose(1, 2), for_all_heads(rotated(k)).transpose(-1, -2)) / std::sqrt(kHeadDim);
  const at::Tensor later = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(later, -INFINITY), -1);
  const at::Tensor mixed = at::matmul(weights, for_all_heads(v)).transpose(1, 2);
  return project(mixed.reshape({batch, tokens, kHeads * kHeadDim}), w.at(at + "o_proj.weight"));
}

inline at::Tensor gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& down) {
  const at::Tensor g = project(x, gate);
  return project(g * g.sigmoid() * project(x, up), down);
}

inline at::Tensor feed_forward(const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& layer) {
  if (layer.experts == 0) {
    return gated(x, w.at(at + "gate_proj.weight"), w.at(at + "up_proj.weight"), w.at(at + "down_proj.weight"));
  }
  const at::Tensor probability = at::softmax(project(x, w.at(at + "router.gate.weight")), -1);  // (B, T, E)
  const auto [best, chosen] = probability.topk(layer.top_k, -1);
  const at::Tensor weight = at::zeros_like(probability).scatter(-1, chosen, best / best.sum(-1, /*keepdim=*/true));
  at::Tensor sum = at::zeros_like(x);
  const auto expert = [&](const char* name, int64_t e) { return w.at(at + "grouped_experts." + name)[e]; };
  for (int64_t e = 0; e < layer.experts; ++e) {
    const at::Tensor result =
        gated(x, expert("gate_proj.weight", e), expert("up_proj.weight", e), expert("down_proj.weight", e));
    sum = sum + weight.select(-1, e).unsqueeze(-1) * result;
  }
  return sum;
}

/// Final hidden states (B, T, H) of token ids, with parameters by their names in the model.
inline at::Tensor plain_decoder(
    const at::Tensor& ids, Weights& w, const std::vector<LayerShape>& layers, bool qk_norm) {
  at::Tensor x = w.at("model.embed_tokens.token_embedding.default.weight").index_select(0, ids.view(-1));
  x = x.view({ids.size(0), ids.size(1), kHidden});
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    if (layers[i].kv_heads > 0) {
      x = x +
          attention(norm(x, w.at(at + "input_layernorm.weight")), w, at + "self_attn.", layers[i].kv_heads, qk_norm);
    }
    if (layers[i].width > 0) {
      x = x + feed_forward(norm(x, w.at(at + "post_attention_layernorm.weight")), w, at + "mlp.", layers[i]);
    }
  }
  return norm(x, w.at("model.norm.weight"));
}

/// The logits (B, T, V) behind the final hidden states.
inline at::Tensor plain_logits(const at::Tensor& hidden_states, Weights& w, bool tied) {
  return project(
      hidden_states,
      w.at(tied ? "model.embed_tokens.token_embedding.default.weight" : "lm_head.lm_head.default.weight"));
}

/// Copies of a model's parameters, which take gradients of their own.
inline Weights copies_of(const nn::Module& model) {
  Weights weights;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    weights[name] = parameter->value().detach().clone().set_requires_grad(true);
  }
  return weights;
}

}  // namespace lehr::model::test

// A decoder in plain ATen, layer by layer from a list: the definition with which heterogeneous models are compared.
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

/// (B, T, heads, D), rotated by positions 0..T-1.
inline at::Tensor rotated(const at::Tensor& x) {
  const int64_t half = kHeadDim / 2;
  const at::Tensor exponent = at::arange(half, at::kDouble) * 2 / kHeadDim;
  const at::Tensor frequency = at::exp(exponent * -std::log(kRopeBase));
  const at::Tensor angle = at::outer(at::arange(x.size(1), at::kDouble), frequency);  // (T, D/2)
  const at::Tensor cos = angle.cos().unsqueeze(1), sin = angle.sin().unsqueeze(1);    // (T, 1, D/2)
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

/// Queries and keys are normed per head in Qwen3, over all heads together in OLMo 2, and not in Llama 3.
inline at::Tensor attention(
    const at::Tensor& x, Weights& w, const std::string& at, int64_t kv_heads, const std::string& model_type) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const auto heads = [&](const char* name, int64_t count) {
    at::Tensor all = project(x, w.at(at + name + "_proj.weight"));
    const auto weight = w.find(at + name + "_norm.weight");
    if (weight != w.end() && model_type == "olmo2") {
      all = norm(all, weight->second);
    }
    all = all.view({batch, tokens, count, kHeadDim});
    return weight != w.end() && model_type != "olmo2" ? norm(all, weight->second) : all;
  };
  const at::Tensor q = heads("q", kHeads), k = heads("k", kv_heads), v = heads("v", kv_heads);
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

/// The output that the attention of a layer adds to the hidden states: the norm is before it, and in OLMo 2 after it.
inline at::Tensor attention_branch(
    const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& layer, const std::string& model_type) {
  const bool before = model_type != "olmo2";
  const at::Tensor& weight = w.at(at + (before ? "input_layernorm.weight" : "post_attention_layernorm.weight"));
  const at::Tensor y = attention(before ? norm(x, weight) : x, w, at + "self_attn.", layer.kv_heads, model_type);
  return before ? y : norm(y, weight);
}

/// The output of the feed-forward block, likewise.
inline at::Tensor ffn_branch(
    const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& layer, const std::string& model_type) {
  const bool before = model_type != "olmo2";
  const at::Tensor& weight =
      w.at(at + (before ? "post_attention_layernorm.weight" : "post_feedforward_layernorm.weight"));
  const at::Tensor y = feed_forward(before ? norm(x, weight) : x, w, at + "mlp.", layer);
  return before ? y : norm(y, weight);
}

/// Final hidden states (B, T, H) of token ids; parameters have their names in the model.
inline at::Tensor plain_decoder(
    const at::Tensor& ids, Weights& w, const std::vector<LayerShape>& layers, const std::string& model_type) {
  at::Tensor x = w.at("model.embed_tokens.token_embedding.default.weight").index_select(0, ids.view(-1));
  x = x.view({ids.size(0), ids.size(1), kHidden});
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    if (layers[i].kv_heads > 0) {
      x = x + attention_branch(x, w, at, layers[i], model_type);
    }
    if (layers[i].width > 0) {
      x = x + ffn_branch(x, w, at, layers[i], model_type);
    }
  }
  return norm(x, w.at("model.norm.weight"));
}

/// The logits (B, T, V) of the final hidden states.
inline at::Tensor plain_logits(const at::Tensor& hidden_states, Weights& w, bool tied) {
  return project(
      hidden_states,
      w.at(tied ? "model.embed_tokens.token_embedding.default.weight" : "lm_head.lm_head.default.weight"));
}

/// Copies of a model's parameters, with gradients of their own.
inline Weights copies_of(const nn::Module& model) {
  Weights weights;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    weights[name] = parameter->value().detach().clone().set_requires_grad(true);
  }
  return weights;
}

}  // namespace lehr::model::test

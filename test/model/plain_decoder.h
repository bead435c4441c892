// A decoder in plain ATen, layer by layer from a list: the definition with which heterogeneous models are compared.
#pragma once

#include <cmath>
#include <string>

#include "lehr/nn/module.h"
#include "test/model/plain_mixers.h"

namespace lehr::model::test {

/// What the layers of a family have in place of Llama 3's.
struct Kind {
  bool norm_before = true;        ///< Norms before a sub-block,
  bool norm_after = false;        ///< and after it.
  bool zero_centered = false;     ///< Norms multiply by 1 + weight.
  bool norm_over_all = false;     ///< QK-norm is over all heads together.
  bool gelu = false;              ///< The gate is tanh's approximation of GELU.
  bool output_gate = false;       ///< q_proj has the gates of a head's outputs after its queries.
  bool two_bases = false;         ///< Layers with a window have rotary positions of their own.
  bool sigmoid = false;           ///< Scores of experts are sigmoids, and a bias decides with them.
  double experts_factor = 1;      ///< On the weights of a token's experts.
  int64_t rotary_dim = kHeadDim;  ///< Leading elements of a head that are rotated.
  double embedding_factor = 1;    ///< On the embeddings.
  double scale = 1 / std::sqrt(static_cast<double>(kHeadDim));
};

inline Kind kind_of(const std::string& model_type) {
  if (model_type == "olmo2" || model_type == "olmo3") {
    return {.norm_before = false, .norm_after = true, .norm_over_all = true, .two_bases = model_type == "olmo3"};
  }
  if (model_type == "gemma3_text") {
    return {
        .norm_after = true,
        .zero_centered = true,
        .gelu = true,
        .two_bases = true,
        .embedding_factor = std::sqrt(static_cast<double>(kHidden)),
        .scale = 1 / std::sqrt(5.0)};
  }
  if (model_type == "glm4_moe" || model_type == "deepseek_v3") {
    return {.sigmoid = true, .experts_factor = kRoutedScalingFactor, .rotary_dim = 4};
  }
  if (model_type == "minimax_m2") {
    return {.norm_over_all = true, .sigmoid = true, .rotary_dim = 4};
  }
  if (model_type == "qwen3_next") {
    return {.zero_centered = true, .output_gate = true, .rotary_dim = 4};
  }
  return {};
}

/// (B, T, heads, D), of which `rotary_dim` elements are rotated by positions 0..T-1.
inline at::Tensor rotated(const at::Tensor& x, double base, int64_t rotary_dim = kHeadDim) {
  const int64_t half = rotary_dim / 2;
  const auto [cos, sin] = angles_of(x.size(1), base, rotary_dim);  // (T, 1, D/2)
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const at::Tensor rest = x.narrow(-1, rotary_dim, x.size(-1) - rotary_dim);
  return at::cat({a * cos - b * sin, b * cos + a * sin, rest}, -1);
}

/// The number in "model.layers.3.self_attn.".
inline int64_t layer_of(const std::string& at) {
  return std::stoll(at.substr(std::string("model.layers.").size()));
}

/// The attention of the layer at the path `at`.
inline at::Tensor attention(
    const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& shape, const std::string& model_type) {
  const int64_t batch = x.size(0), tokens = x.size(1), layer = layer_of(at), kv_heads = shape.kv_heads;
  const Kind kind = kind_of(model_type);
  const int64_t window = window_of(model_type, layer, shape);
  const auto heads = [&](const char* name, int64_t count) {
    at::Tensor all = project(x, w.at(at + name + "_proj.weight"));
    if (all.size(-1) == 2 * count * kHeadDim) {  // with gates
      all = all.view({batch, tokens, count, 2 * kHeadDim}).narrow(-1, 0, kHeadDim).flatten(2);
    }
    if (const auto bias = w.find(at + name + "_proj.bias"); bias != w.end()) {
      all = all + bias->second;
    }
    const auto weight = w.find(at + name + "_norm.weight");
    if (weight != w.end() && kind.norm_over_all) {
      all = norm(all, weight->second);
    }
    all = all.view({batch, tokens, count, kHeadDim});
    return weight != w.end() && !kind.norm_over_all ? norm(all, weight->second, kind.zero_centered) : all;
  };
  at::Tensor gates;
  if (kind.output_gate) {
    const at::Tensor both = project(x, w.at(at + "q_proj.weight")).view({batch, tokens, kHeads, 2 * kHeadDim});
    gates = at::sigmoid(both.narrow(-1, kHeadDim, kHeadDim));
  }
  at::Tensor q = heads("q", kHeads), k = heads("k", kv_heads);
  const at::Tensor v = heads("v", kv_heads);
  if (rotates(model_type, layer)) {
    // A window of the layer's own does not change its positions.
    const double base = slides(model_type, layer) && kind.two_bases ? kSlidingRopeBase : kRopeBase;
    q = rotated(q, base, kind.rotary_dim);
    k = rotated(k, base, kind.rotary_dim);
  }
  const auto for_all_heads = [&](const at::Tensor& t) {
    return t.repeat_interleave(kHeads / kv_heads, /*dim=*/2).transpose(1, 2);  // (B, Hq, T, D)
  };
  const at::Tensor scores = at::matmul(q.transpose(1, 2), for_all_heads(k).transpose(-1, -2)) * kind.scale;
  at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  if (window > 0) {
    hidden = hidden | at::ones({tokens, tokens}, at::kBool).tril(-window);
  }
  at::Tensor masked = scores.masked_fill(hidden, -INFINITY);
  if (const auto sinks = w.find(at + "sinks"); sinks != w.end()) {
    masked = at::cat({masked, sinks->second.view({1, kHeads, 1, 1}).expand({batch, kHeads, tokens, 1})}, -1);
  }
  const at::Tensor weights = at::softmax(masked, -1).narrow(-1, 0, tokens);
  at::Tensor mixed = at::matmul(weights, for_all_heads(v)).transpose(1, 2);
  mixed = kind.output_gate ? mixed * gates : mixed;
  const at::Tensor output = project(mixed.reshape({batch, tokens, kHeads * kHeadDim}), w.at(at + "o_proj.weight"));
  const auto bias = w.find(at + "o_proj.bias");
  return bias == w.end() ? output : output + bias->second;
}

/// The product of the gate and the other half, which a feed-forward block projects down.
inline at::Tensor inner(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up, bool gelu = false) {
  const at::Tensor g = project(x, gate);
  return (gelu ? at::gelu(g, "tanh") : g * g.sigmoid()) * project(x, up);
}

/// The router's logits of the MoE layer at the path `at`.
inline at::Tensor router_logits(const at::Tensor& x, const Weights& w, const std::string& at) {
  const at::Tensor logits = project(x, w.at(at + "router.gate.weight"));
  const auto bias = w.find(at + "router.gate.bias");
  return bias == w.end() ? logits : logits + bias->second;
}

/// The weights (B, T, E) of the experts by the router's logits, 0 for those that are not chosen. An expert whose logit
/// is -infinity is not there.
inline at::Tensor expert_weights(
    const at::Tensor& logits,
    const Weights& w,
    const std::string& at,
    const LayerShape& layer,
    const std::string& model_type) {
  const Kind kind = kind_of(model_type);
  const at::Tensor scores = kind.sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  const auto bias = w.find(at + "router.expert_bias");
  const at::Tensor liked = bias == w.end() ? scores : scores + bias->second.detach();
  const at::Tensor chosen = std::get<1>(liked.masked_fill(logits.eq(-INFINITY), -INFINITY).topk(layer.top_k, -1));
  const at::Tensor best = scores.gather(-1, chosen);
  return at::zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, /*keepdim=*/true) * kind.experts_factor);
}

/// The output of the shared expert, times the gate's sigmoid if it has one.
inline at::Tensor shared_output(const at::Tensor& x, const Weights& w, const std::string& at) {
  const std::string shared = at + "shared_expert.";
  const at::Tensor output = project(
      inner(x, w.at(shared + "gate_proj.weight"), w.at(shared + "up_proj.weight")), w.at(shared + "down_proj.weight"));
  const auto gate = w.find(at + "shared_expert_gate.weight");
  return gate == w.end() ? output : output * at::sigmoid(project(x, gate->second));
}

/// What expert `e` projects down.
inline at::Tensor expert_inner(const at::Tensor& x, const Weights& w, const std::string& at, int64_t e) {
  const auto weight = [&](const char* name) { return w.at(at + "grouped_experts." + name)[e]; };
  if (!w.contains(at + "grouped_experts.gate_up_proj.weight")) {
    return inner(x, weight("gate_proj.weight"), weight("up_proj.weight"));
  }
  const at::Tensor both = project(x, weight("gate_up_proj.weight")) + weight("gate_up_proj.bias");
  const at::Tensor gate = both.slice(-1, 0, std::nullopt, 2).clamp(std::nullopt, kSwiGLULimit);
  const at::Tensor up = both.slice(-1, 1, std::nullopt, 2).clamp(-kSwiGLULimit, kSwiGLULimit);
  return (up + 1) * gate * at::sigmoid(1.702 * gate);
}

/// The output of expert `e`.
inline at::Tensor expert_output(const at::Tensor& x, const Weights& w, const std::string& at, int64_t e) {
  const at::Tensor output = project(expert_inner(x, w, at, e), w.at(at + "grouped_experts.down_proj.weight")[e]);
  const auto bias = w.find(at + "grouped_experts.down_proj.bias");
  return bias == w.end() ? output : output + bias->second[e];
}

inline at::Tensor feed_forward(
    const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& layer, const std::string& model_type) {
  if (layer.width == kLinear) {
    return project(x, w.at(at + "linear_mlp.weight"));
  }
  if (layer.experts == 0) {
    const bool gelu = kind_of(model_type).gelu;
    return project(
        inner(x, w.at(at + "gate_proj.weight"), w.at(at + "up_proj.weight"), gelu), w.at(at + "down_proj.weight"));
  }
  const at::Tensor weight = expert_weights(router_logits(x, w, at), w, at, layer, model_type);
  at::Tensor sum = layer.shared > 0 ? shared_output(x, w, at) : at::zeros_like(x);
  for (int64_t e = 0; e < layer.experts; ++e) {
    sum = sum + weight.select(-1, e).unsqueeze(-1) * expert_output(x, w, at, e);
  }
  return sum;
}

/// The input of the attention of the layer at the path `at`: normed, in most families.
inline at::Tensor before_attention(
    const at::Tensor& x, const Weights& w, const std::string& at, const std::string& model_type) {
  const Kind kind = kind_of(model_type);
  return kind.norm_before ? norm(x, w.at(at + "input_layernorm.weight"), kind.zero_centered) : x;
}

/// What the output of the attention adds to the hidden states.
inline at::Tensor after_attention(
    const at::Tensor& y, const Weights& w, const std::string& at, const std::string& model_type) {
  const Kind kind = kind_of(model_type);
  return kind.norm_after ? norm(y, w.at(at + "post_attention_layernorm.weight"), kind.zero_centered) : y;
}

/// The same of the feed-forward block.
inline at::Tensor before_ffn(
    const at::Tensor& x, const Weights& w, const std::string& at, const std::string& model_type) {
  const Kind kind = kind_of(model_type);
  const char* name = kind.norm_after ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
  return kind.norm_before ? norm(x, w.at(at + name), kind.zero_centered) : x;
}
inline at::Tensor after_ffn(
    const at::Tensor& y, const Weights& w, const std::string& at, const std::string& model_type) {
  const Kind kind = kind_of(model_type);
  return kind.norm_after ? norm(y, w.at(at + "post_feedforward_layernorm.weight"), kind.zero_centered) : y;
}

/// The output that the attention of a layer adds to the hidden states.
inline at::Tensor attention_branch(
    const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& layer, const std::string& model_type) {
  const at::Tensor read = before_attention(x, w, at, model_type);
  const auto output = [&] {
    return layer.kv_heads == kLinear            ? project(read, w.at(at + "self_attn.linear_attn.weight"))
           : model_type == "deepseek_v3"        ? latent_attention(read, w, at + "self_attn.")
           : is_delta(model_type, layer_of(at)) ? gated_delta_net(read, w, at + "linear_attn.")
                                                : attention(read, w, at + "self_attn.", layer, model_type);
  };
  return after_attention(output(), w, at, model_type);
}

/// The output of the feed-forward block, likewise.
inline at::Tensor ffn_branch(
    const at::Tensor& x, Weights& w, const std::string& at, const LayerShape& layer, const std::string& model_type) {
  const at::Tensor read = before_ffn(x, w, at, model_type);
  return after_ffn(feed_forward(read, w, at + "mlp.", layer, model_type), w, at, model_type);
}

/// Final hidden states (B, T, H) of token ids; parameters have their names in the model.
inline at::Tensor plain_decoder(
    const at::Tensor& ids, Weights& w, const std::vector<LayerShape>& layers, const std::string& model_type) {
  at::Tensor x = w.at("model.embed_tokens.token_embedding.default.weight").index_select(0, ids.view(-1));
  x = x.view({ids.size(0), ids.size(1), kHidden}) * kind_of(model_type).embedding_factor;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    if (layers[i].kv_heads != 0) {
      x = x + attention_branch(x, w, at, layers[i], model_type);
    }
    if (layers[i].width != 0) {
      x = x + ffn_branch(x, w, at, layers[i], model_type);
    }
  }
  return norm(x, w.at("model.norm.weight"), kind_of(model_type).zero_centered);
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

// Latent attention and gated DeltaNet in plain ATen, with the sizes of heterogeneous.h.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "test/model/heterogeneous.h"

namespace lehr::model::test {

using Weights = std::map<std::string, at::Tensor>;

inline at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, bool zero_centered = false) {
  const at::Tensor normed = x * (x.square().mean(-1, /*keepdim=*/true) + kEps).rsqrt();
  return zero_centered ? normed * (1 + weight) : normed * weight;
}

inline at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  return at::matmul(x, weight.t());
}

/// The cosines and sines (T, 1, rotary_dim / 2) of positions 0..T-1.
inline std::pair<at::Tensor, at::Tensor> angles_of(int64_t tokens, double base, int64_t rotary_dim) {
  const at::Tensor exponent = at::arange(rotary_dim / 2, at::kDouble) * 2 / rotary_dim;
  const at::Tensor frequency = at::exp(exponent * -std::log(base));
  const at::Tensor angle = at::outer(at::arange(tokens, at::kDouble), frequency).unsqueeze(1);
  return {angle.cos(), angle.sin()};
}

/// The latent attention at the path `at`. Neighbouring elements are rotated together; scores do not depend on the order
/// of the results.
inline at::Tensor latent_attention(const at::Tensor& x, const Weights& w, const std::string& at) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const auto weight = [&](const char* name) { return w.at(at + name + ".weight"); };
  const auto [cos, sin] = angles_of(tokens, kRopeBase, kHeadDim);
  const auto rotated = [cos = cos, sin = sin](const at::Tensor& part) {
    const at::Tensor a = part.slice(-1, 0, std::nullopt, 2), b = part.slice(-1, 1, std::nullopt, 2);
    return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
  };
  const at::Tensor of_queries = norm(project(x, weight("q_a_proj")), weight("q_a_layernorm"));
  const at::Tensor q = project(of_queries, weight("q_b_proj")).view({batch, tokens, kHeads, kPlainDim + kHeadDim});
  const at::Tensor compressed = project(x, weight("kv_a_proj_with_mqa"));
  const at::Tensor latent = norm(compressed.narrow(-1, 0, kLatent), weight("kv_a_layernorm"));
  const at::Tensor shared = rotated(compressed.narrow(-1, kLatent, kHeadDim).unsqueeze(2));
  const at::Tensor kv = project(latent, weight("kv_b_proj")).view({batch, tokens, kHeads, kPlainDim + kValueDim});
  const at::Tensor queries = at::cat({q.narrow(-1, 0, kPlainDim), rotated(q.narrow(-1, kPlainDim, kHeadDim))}, -1);
  const at::Tensor keys = at::cat({kv.narrow(-1, 0, kPlainDim), shared.expand({batch, tokens, kHeads, kHeadDim})}, -1);
  const at::Tensor scores =
      at::einsum("bthd,bshd->bhts", {queries, keys}) / std::sqrt(static_cast<double>(kPlainDim + kHeadDim));
  const at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
  const at::Tensor mixed = at::einsum("bhts,bshd->bthd", {weights, kv.narrow(-1, kPlainDim, kValueDim)});
  return project(mixed.reshape({batch, tokens, kHeads * kValueDim}), weight("o_proj"));
}

/// The gated DeltaNet at the path `at`: each value head by itself, token by token.
inline at::Tensor gated_delta_net(const at::Tensor& x, const Weights& w, const std::string& at) {
  const int64_t batch = x.size(0), tokens = x.size(1), group = kDeltaHeads / kDeltaKeyHeads;
  const int64_t key_rows = 2 * kDeltaKeyDim + 2 * group * kDeltaValueDim;
  const at::Tensor projected = project(x, w.at(at + "in_proj_qkvz.weight"));
  const at::Tensor ba = project(x, w.at(at + "in_proj_ba.weight"));
  const auto convolved = [&](const at::Tensor& stream, const char* name, int64_t head) {
    const int64_t size = stream.size(2);
    const at::Tensor weight = w.at(at + "conv1d." + name).narrow(0, head * size, size).squeeze(1);  // (size, W)
    at::Tensor sum = at::zeros_like(stream);
    for (int64_t back = 0; back < weight.size(1); ++back) {
      const at::Tensor shifted = at::cat({at::zeros({batch, back, size}, at::kDouble), stream}, 1).narrow(1, 0, tokens);
      sum = sum + shifted * weight.select(1, weight.size(1) - 1 - back);
    }
    return sum * sum.sigmoid();
  };
  const auto normed = [](const at::Tensor& rows) { return rows / (rows.square().sum(-1, true) + 1e-6).sqrt(); };
  std::vector<at::Tensor> outputs;
  for (int64_t head = 0; head < kDeltaHeads; ++head) {
    const int64_t key_head = head / group, member = head % group;
    const auto part = [&](int64_t offset, int64_t size) {
      return projected.narrow(-1, key_head * key_rows + offset, size);
    };
    const int64_t value = 2 * kDeltaKeyDim + member * kDeltaValueDim;
    const at::Tensor q =
        normed(convolved(part(0, kDeltaKeyDim), "query", key_head)) / std::sqrt(static_cast<double>(kDeltaKeyDim));
    const at::Tensor k = normed(convolved(part(kDeltaKeyDim, kDeltaKeyDim), "key", key_head));
    const at::Tensor v = convolved(part(value, kDeltaValueDim), "value", head);
    const at::Tensor z = part(value + group * kDeltaValueDim, kDeltaValueDim);
    const at::Tensor beta = ba.select(-1, key_head * 2 * group + member).sigmoid();  // (B, T)
    const at::Tensor a = ba.select(-1, key_head * 2 * group + group + member);
    const at::Tensor step = (1 + (a + w.at(at + "dt_bias")[head]).exp()).log();
    const at::Tensor decay = (-w.at(at + "A_log")[head].exp() * step).exp();
    at::Tensor state = at::zeros({batch, kDeltaKeyDim, kDeltaValueDim}, at::kDouble);
    std::vector<at::Tensor> ys;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto of_token = [t](const at::Tensor& all) { return all.select(1, t).unsqueeze(1); };  // (B, 1, D)
      state = state * decay.select(1, t).view({-1, 1, 1});
      const at::Tensor error = of_token(v) - at::matmul(of_token(k), state);
      state = state + of_token(k).transpose(1, 2) * (error * beta.select(1, t).view({-1, 1, 1}));
      ys.push_back(at::matmul(of_token(q), state));
    }
    outputs.push_back(norm(at::cat(ys, 1), w.at(at + "norm.weight")) * z * z.sigmoid());
  }
  return project(at::cat(outputs, -1), w.at(at + "out_proj.weight"));
}

}  // namespace lehr::model::test

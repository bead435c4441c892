// Gated DeltaNet (Yang et al., https://arxiv.org/abs/2412.06464): linear attention with a state that forgets and is
// corrected, as in most layers of Qwen3-Next.
#pragma once

#include "lehr/nn/linear.h"
#include "lehr/nn/linear_attention.h"
#include "lehr/nn/rms_norm.h"

namespace lehr::nn {

/// Sizes of a gated DeltaNet.
struct GatedDeltaNetParameters {
  int64_t hidden_size;
  int64_t num_key_heads;    ///< Heads of queries and keys.
  int64_t num_value_heads;  ///< Heads of values and states; a multiple of num_key_heads.
  int64_t key_head_dim;
  int64_t value_head_dim;
  int64_t conv_kernel = 4;  ///< Tokens that the convolution sees: a token and those before it.
  double norm_eps = 1e-6;
  Init init = Init::normal(0.02);
};

/// The weights of the causal convolutions of queries, keys and values, one for each so that each can be sharded by
/// heads. Checkpoints have them as the rows of one tensor, conv1d.weight.
class CausalConv1dImpl : public Module {
 public:
  CausalConv1dImpl(int64_t key_channels, int64_t value_channels, int64_t width, Init init);

  at::Tensor query;  // (Hk * K, 1, W)
  at::Tensor key;    // (Hk * K, 1, W)
  at::Tensor value;  // (Hv * V, 1, W)
};
LEHR_MODULE(CausalConv1d);

/// With q, k, v, z, b and a projected from the hidden states, and q, k and v passed through a causal convolution:
///
///     y = gated_delta_rule(q, k, v, decay = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b))
///     output = out_proj(norm(y) silu(z))
///
/// States are reset in each document of a packed batch, and after padding. The number of local heads follows from the
/// projections' outputs, which may hold only some of the heads.
class GatedDeltaNetImpl : public Module, public HasLinearAttentionCore {
 public:
  /// Throws a usage error that names the parameter if one is out of range.
  explicit GatedDeltaNetImpl(const GatedDeltaNetParameters& params);

  /// Maps (B, T, C) to (B, T, C). With a cache, the T tokens follow those in the cache; documents and padding are then
  /// not supported. Throws a usage error for masks other than documents and padding.
  at::Tensor forward(
      const at::Tensor& hidden_states, const ops::AttentionMask& mask = {}, KeyValueCache* cache = nullptr);

  /// Number of heads of the whole module, even if its projections hold only some of them.
  int64_t num_key_heads() const { return params_.num_key_heads; }

  Linear in_proj_qkvz{nullptr};  // rows by key head: its q, k, and the v and z of its value heads
  Linear in_proj_ba{nullptr};    // rows by key head: the b and a of its value heads
  CausalConv1d conv1d{nullptr};
  at::Tensor dt_bias;  // (Hv)
  at::Tensor a_log;    // (Hv), "A_log"
  RMSNorm norm{nullptr};
  Linear out_proj{nullptr};

 private:
  GatedDeltaNetParameters params_;
};
LEHR_MODULE(GatedDeltaNet);

}  // namespace lehr::nn

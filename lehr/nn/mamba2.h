// Mamba-2 (Dao and Gu, https://arxiv.org/abs/2405.21060): a state space layer whose state decays by one number per
// head, as in most layers of Nemotron-H that mix tokens.
#pragma once

#include "lehr/nn/linear.h"
#include "lehr/nn/linear_attention.h"

namespace lehr::nn {

/// Sizes of a Mamba-2 block.
struct Mamba2Parameters {
  int64_t hidden_size;
  int64_t num_heads;   ///< Heads of x, dt, z and of states; a multiple of num_groups.
  int64_t head_dim;    ///< Width P of a head of x and z.
  int64_t num_groups;  ///< Groups of heads, each with one B and one C.
  int64_t state_size;  ///< Width N of B and C: a head's state has N x P numbers.
  int64_t conv_kernel = 4;
  bool conv_bias = true;
  double min_time_step = 0.001;      ///< Lower limit of dt, and of its initial values.
  double max_initial_step = 0.1;     ///< Upper limit of the initial values of dt, not of dt.
  double initial_step_floor = 1e-4;  ///< Another lower limit of the initial values.
  double norm_eps = 1e-5;
  Init init = Init::normal(0.02);
};

/// The weights and biases of the causal convolutions of x, B and C, each of which can be sharded by groups. Checkpoints
/// have them as the rows of one tensor, conv1d.weight, in this order.
class Mamba2ConvImpl : public Module {
 public:
  explicit Mamba2ConvImpl(const Mamba2Parameters& params);

  at::Tensor x, b, c;                 // (H * P or G * N, 1, W)
  at::Tensor x_bias, b_bias, c_bias;  // (H * P or G * N), undefined without biases
};
LEHR_MODULE(Mamba2Conv);

/// RMSNorm of each group of `group_size` elements by itself, with a weight for every element.
class GroupRMSNormImpl : public Module {
 public:
  GroupRMSNormImpl(int64_t size, int64_t group_size, double eps);

  /// Maps (..., size) to the same shape and dtype; of a layer that is sharded by groups, whole groups.
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;  // (size)

 private:
  int64_t group_size_;
  double eps_;
};
LEHR_MODULE(GroupRMSNorm);

/// With z, x, B, C and dt projected from the hidden states, x, B and C passed through a causal convolution, and dt =
/// max(softplus(dt + dt_bias), min_time_step), for each head with the state S (N, P):
///
///     S = exp(-exp(A_log) dt) S + B^T (dt x)
///     y = C S + D x
///     output = out_proj(group_norm(y silu(z)))
///
/// States are reset in each document of a packed batch, and after padding. The number of local heads follows from the
/// projection's outputs, which may hold only some of the groups.
class Mamba2Impl : public Module, public HasLinearAttentionCore {
 public:
  /// Throws a usage error that names the parameter if one is out of range.
  explicit Mamba2Impl(const Mamba2Parameters& params);

  /// Maps (B, T, C) to (B, T, C). With a cache, the T tokens follow those in the cache; documents and padding are then
  /// not supported. Throws a usage error for masks other than documents and padding.
  at::Tensor forward(
      const at::Tensor& hidden_states, const ops::AttentionMask& mask = {}, KeyValueCache* cache = nullptr);

  /// Number of groups of the whole module, even if its projection holds only some of them.
  int64_t num_groups() const { return params_.num_groups; }

  Linear in_proj{nullptr};  // rows by group: the z and x of its heads, its B and C, and the dt of its heads
  Mamba2Conv conv1d{nullptr};
  at::Tensor dt_bias;  // (H)
  at::Tensor a_log;    // (H), "A_log"
  at::Tensor d;        // (H), "D"
  GroupRMSNorm norm{nullptr};
  Linear out_proj{nullptr};

 private:
  Mamba2Parameters params_;
};
LEHR_MODULE(Mamba2);

}  // namespace lehr::nn

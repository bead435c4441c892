// Definitions of the operators in plain ATen, for any device and dtype. Each operator's header has the contract.
//
// Fast kernels are tested against these, and calls without a fast kernel run them.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"
#include "lehr/ops/attention.h"
#include "lehr/ops/linear_kl.h"
#include "lehr/ops/rms_norm.h"
#include "lehr/ops/rotary.h"

namespace lehr::ops::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind = NormWeight::plain);

/// An undefined branch adds nothing.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& hidden_states,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double eps,
    NormWeight kind = NormWeight::plain);

std::tuple<at::Tensor, at::Tensor> apply_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style);

/// Holds all logits.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index);

/// Holds all logits of both models. `loss` is differentiable.
LinearKl linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const at::Tensor& labels,
    const LinearKlOptions& options);

at::Tensor cosine_distance(const at::Tensor& x, const at::Tensor& target);

/// Returns 1 / sqrt(D), the default scale of attention.
double default_scale(int64_t head_size);

/// Calls at::scaled_dot_product_attention, with a mask tensor only if causal order alone is not enough. With sinks or
/// softcap it runs as separate matmuls that hold all scores.
at::Tensor attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask = {},
    const AttentionOptions& options = {});

}  // namespace lehr::ops::reference

// Fused distillation loss: the logits of a student and of its teacher, and their divergence, without storing logits.
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The teacher's part of linear_kl; needs no gradients.
struct TeacherHead {
  at::Tensor hidden;                   ///< (N, its hidden size), after its final norm, of the same tokens.
  at::Tensor weight;                   ///< (V, its hidden size), of the same vocabulary.
  std::optional<double> softcap = {};  ///< Of its logits (ops/logit_softcap.h).
};

/// Options of knowledge distillation (Hinton et al., https://arxiv.org/abs/1503.02531). Unlike there, the divergence is
/// not multiplied by the square of the temperature.
struct LinearKlOptions {
  double temperature = 1;  ///< Of the softmax of both in the divergence.
  double kl_weight = 1;    ///< Of the divergence in the loss.
  double nll_weight = 0;   ///< Of the labels' negative log-likelihood in the loss, at temperature 1.
  int64_t ignore_index = -100;
  std::optional<double> softcap = {};  ///< Of the student's logits (ops/logit_softcap.h).
};

/// Values (N) per token, float32 (float64 for a float64 student); 0 where the label is ignored. Only the loss is
/// differentiable.
struct LinearKl {
  at::Tensor loss;    ///< kl_weight kl + nll_weight nll.
  at::Tensor kl;      ///< KL(teacher || student), >= 0.
  at::Tensor nll;     ///< The student's negative log-likelihood of the label, as linear_cross_entropy computes it.
  at::Tensor agrees;  ///< 1 where both have the same most likely token, else 0.
};

/// Compares softmax(teacher.hidden teacher.weight^T / temperature), the distribution of a teacher, with that of a
/// student, softmax(hidden weight^T / temperature). hidden is (N, H), weight (V, H) of the same floating type; the
/// teacher's tensors have a type and a hidden size of their own. labels is (N) int64.
///
/// Chunks, gradients, ignored labels, and a GPU are treated as in linear_cross_entropy: forward computes the gradients
/// of hidden and weight too, and ignored tokens cost nothing on a CPU. The logits of both models share kLogitsBytes. A
/// training step takes four matmuls, one of them the teacher's. Throws usage errors as linear_cross_entropy does.
LinearKl linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const at::Tensor& labels,
    const LinearKlOptions& options = {});

namespace reference {
/// Holds all logits of both models. `loss` is differentiable.
LinearKl linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const TeacherHead& teacher,
    const at::Tensor& labels,
    const LinearKlOptions& options);
}  // namespace reference

}  // namespace lehr::ops

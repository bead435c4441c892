#include "lehr/ops/cosine_distance/cosine_distance.h"

#include <ATen/ops/cosine_similarity.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns 1 / |x| per row, (N, 1); 0 for a row that is zero.
at::Tensor inverse_norm(const at::Tensor& x) {
  const at::Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  return norm.reciprocal().masked_fill_(norm.eq(0), 0);
}

struct CosineDistanceFunction : AutogradFunction<CosineDistanceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& target) {
    const auto wide = cpu::wide_type(x.scalar_type());
    const at::Tensor wide_x = x.to(wide), wide_target = target.to(wide);
    const at::Tensor of_x = inverse_norm(wide_x), of_target = inverse_norm(wide_target);
    const at::Tensor cosine = (wide_x * wide_target).sum(-1, /*keepdim=*/true) * of_x * of_target;  // (N, 1)
    ctx->save_for_backward({x, target, of_x, of_target, cosine});
    return 1 - cosine.squeeze(-1);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::loss, "lehr::cosine_distance_backward");
    refuse_double_backward("cosine_distance");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &target = saved[1], &of_x = saved[2], &of_target = saved[3], &cosine = saved[4];
    // d cos / dx = (target / |target| - cos x / |x|) / |x|
    const at::Tensor scale = grads[0].unsqueeze(-1) * of_x;
    at::Tensor gradient = x.to(cosine.scalar_type()) * (scale * cosine * of_x);
    gradient.sub_(target.to(cosine.scalar_type()) * (scale * of_target));
    return {gradient.to(x.scalar_type()), {}};
  }
};
}  // namespace

namespace reference {
at::Tensor cosine_distance(const at::Tensor& x, const at::Tensor& target) {
  const auto wide = cpu::wide_type(x.scalar_type());
  return 1 - at::cosine_similarity(x.to(wide), target.to(wide), -1, /*eps=*/1e-30);
}
}  // namespace reference

at::Tensor cosine_distance(const at::Tensor& x, const at::Tensor& target) {
  const OperatorScope scope(OperatorKind::loss, "lehr::cosine_distance");
  require(
      x.dim() == 2 && x.sizes() == target.sizes(),
      "cosine_distance: expected x and target (N, H), found {} and {}",
      shape_of(x),
      shape_of(target));
  return CosineDistanceFunction::apply(x, target.detach());
}

}  // namespace lehr::ops

#include "lehr/nn/expert_parts.h"

#include "lehr/base/error.h"
#include "lehr/nn/relu_squared.h"
#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::nn {

void require_parts(const GroupedExperts& experts) {
  for (const GroupedLinear& layer : {experts->gate_proj, experts->up_proj, experts->gate_up_proj, experts->down_proj}) {
    require(
        !layer || (!layer->adapter() && !layer->float8()),
        "parallelism.expert_parallel_parts: experts {} are computed all at once; expected 1",
        layer && layer->adapter() ? "with adapters" : "in float8 (float8.moe_fqns)");
  }
}

ExpertParts::Layer::Layer(const GroupedLinear& layer) : weight(layer->weight), bias(layer->bias) {
  layer->require_no_hooks();
}

at::Tensor ExpertParts::Layer::operator()(const at::Tensor& rows, const at::Tensor& ends, int64_t first) const {
  return weight.product(rows, ends, first, bias.defined() ? bias.narrow(0, first, ends.size(0)) : bias);
}

ExpertParts::ExpertParts(const GroupedExperts& experts) : clamp_(experts->clamp()), down_(experts->down_proj) {
  require_parts(experts);
  experts->require_no_hooks();
  if (clamp_) {
    gate_up_.emplace(experts->gate_up_proj);
  } else {
    if (experts->gate_proj) {
      gate_.emplace(experts->gate_proj);
    }
    up_.emplace(experts->up_proj);
  }
}

at::Tensor ExpertParts::forward(const at::Tensor& rows, const at::Tensor& ends, int64_t first) const {
  if (gate_up_) {
    return down_(ops::clamped_swiglu((*gate_up_)(rows, ends, first), *clamp_), ends, first);
  }
  if (!gate_) {
    return down_(relu_squared((*up_)(rows, ends, first)), ends, first);
  }
  const at::Tensor gate = (*gate_)(rows, ends, first);  // evaluated first: the order of arguments is unspecified
  return down_(ops::silu_mul(gate, (*up_)(rows, ends, first)), ends, first);
}

}  // namespace lehr::nn

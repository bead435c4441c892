// Grouped products: the autograd function over ops/matmul.h, group by group.
#include "lehr/ops/grouped_linear.h"

#include <ATen/ops/_grouped_mm.h>

#include "lehr/base/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/matmul.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls `work(group, first row, rows)` for every group that has rows.
template <class Work>
void for_each_group(const at::Tensor& ends, Work work) {
  const auto* end = ends.const_data_ptr<int32_t>();
  int64_t begin = 0;
  for (int64_t g = 0; g < ends.size(0); ++g) {
    if (end[g] > begin) {
      work(g, begin, end[g] - begin);
    }
    begin = end[g];
  }
}

at::Tensor forward_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends) {
  at::Tensor output = at::empty({input.size(0), weight.size(1)}, input.options());
  for_each_group(ends, [&](int64_t g, int64_t first, int64_t rows) {
    output.narrow(0, first, rows).copy_(product(input.narrow(0, first, rows), weight[g].t()));
  });
  return output;
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends) {
    ctx->save_for_backward({input, weight, ends});
    return forward_product(input, weight, ends);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("grouped_linear");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& ends = saved[2];
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (ctx->needs_input_grad(0)) {
      grad_input = at::empty_like(input);
    }
    if (ctx->needs_input_grad(1)) {
      grad_weight = at::zeros_like(weight);
    }
    for_each_group(ends, [&](int64_t g, int64_t first, int64_t rows) {
      const at::Tensor grad_rows = grad.narrow(0, first, rows);
      if (grad_input.defined()) {
        grad_input.narrow(0, first, rows).copy_(product(grad_rows, weight[g]));
      }
      if (grad_weight.defined()) {
        grad_weight[g].copy_(product(grad_rows.t(), input.narrow(0, first, rows)));
      }
    });
    return {grad_input, grad_weight, at::Tensor()};
  }
};
}  // namespace

at::Tensor grouped_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "grouped_linear",
         .inputs = {{"rows", input}, {"weight", weight}},
         .shape = {input.size(0), weight.size(1)},
         .dtype = input.scalar_type()});
  }
  require(
      input.dim() == 2 && weight.dim() == 3 && input.size(1) == weight.size(2) &&
          input.scalar_type() == weight.scalar_type(),
      "grouped_linear: expected rows of {} {}, found {} {}",
      c10::toString(weight.scalar_type()),
      weight.dim() == 3 ? weight.size(2) : 0,
      c10::toString(input.scalar_type()),
      shape_of(input));
  require(
      ends.dim() == 1 && ends.size(0) == weight.size(0) && ends.scalar_type() == at::kInt,
      "grouped_linear: ends: expected {} int32, found {} {}",
      weight.size(0),
      shape_of(ends),
      c10::toString(ends.scalar_type()));
  if (input.is_cuda() && input.scalar_type() == at::kBFloat16) {
    return at::_grouped_mm(input, weight.transpose(1, 2), ends);
  }
  if (!input.is_cpu()) {
    return grouped_linear_reference(input, weight, ends);
  }
  return will_differentiate(input, weight) ? GroupedLinear::apply(input, weight, ends)
                                           : forward_product(input, weight, ends);
}

}  // namespace lehr::ops

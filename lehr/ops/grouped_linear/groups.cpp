#include "lehr/ops/grouped_linear/groups.h"

#include "lehr/ops/autograd.h"
#include "lehr/ops/grouped_linear/cuda.h"
#include "lehr/ops/matmul/matmul.h"

namespace lehr::ops {

void check_grouped_linear(
    const char* name,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& ends,
    const at::Tensor& bias) {
  require(
      input.dim() == 2 && weight.dim() == 3 && input.size(1) == weight.size(2) &&
          input.scalar_type() == weight.scalar_type(),
      "{}: expected rows of {} {}, found {} {}",
      name,
      c10::toString(weight.scalar_type()),
      weight.dim() == 3 ? weight.size(2) : 0,
      c10::toString(input.scalar_type()),
      shape_of(input));
  require(
      ends.dim() == 1 && ends.size(0) == weight.size(0) && ends.scalar_type() == at::kInt,
      "{}: ends: expected {} int32, found {} {}",
      name,
      weight.size(0),
      shape_of(ends),
      c10::toString(ends.scalar_type()));
  require(
      !bias.defined() || (bias.dim() == 2 && bias.size(0) == weight.size(0) && bias.size(1) == weight.size(1) &&
                          bias.scalar_type() == weight.scalar_type()),
      "{}: bias: expected {} {}x{}, found {} {}",
      name,
      c10::toString(weight.scalar_type()),
      weight.size(0),
      weight.size(1),
      c10::toString(bias.scalar_type()),
      shape_of(bias));
}

at::Tensor product_of_groups(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias) {
  at::Tensor output = at::empty({input.size(0), weight.size(1)}, input.options());
  for_each_group(ends, input.size(0), [&](int64_t g, int64_t first, int64_t count) {
    at::Tensor rows = output.narrow(0, first, count);
    put_product(rows, input.narrow(0, first, count), weight[g].t());
    if (bias.defined()) {
      rows.add_(bias[g]);
    }
  });
  return output;
}

at::Tensor input_gradient_of_groups(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) {
  at::Tensor gradient = at::empty({grad.size(0), weight.size(2)}, grad.options());
  for_each_group(ends, grad.size(0), [&](int64_t g, int64_t first, int64_t count) {
    put_product(gradient.narrow(0, first, count), grad.narrow(0, first, count), weight[g]);
  });
  return gradient;
}

at::Tensor GroupMatmuls::product(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias) const {
  if (cuda::multiplies_groups(input)) {
    const at::Tensor output = cuda::grouped_product(input, weight, ends);
    return bias.defined() ? cuda::add_group_bias_(output, bias, ends) : output;
  }
  return product_of_groups(input, weight, ends, bias);
}

at::Tensor GroupMatmuls::input_gradient(
    const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) const {
  if (cuda::multiplies_groups(grad)) {
    return cuda::grouped_input_gradient(grad, weight, ends);
  }
  return input_gradient_of_groups(grad, weight, ends);
}

at::Tensor GroupMatmuls::weight_gradient(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends) const {
  if (cuda::multiplies_groups(grad)) {
    return cuda::grouped_weight_gradient(grad, input, ends);
  }
  return weight_gradient_of_groups(
      grad, input, ends, [&](const at::Tensor& gradient, int64_t /*group*/, int64_t first, int64_t count) {
        put_product(gradient, grad.narrow(0, first, count).t(), input.narrow(0, first, count));
      });
}

at::Tensor bias_gradient_of_groups(const at::Tensor& grad, const at::Tensor& ends) {
  if (cuda::multiplies_groups(grad)) {
    return cuda::grouped_weight_gradient(grad, at::ones({grad.size(0), 1}, grad.options()), ends).squeeze(-1);
  }
  at::Tensor gradient = at::zeros({ends.size(0), grad.size(1)}, grad.options());
  for_each_group(ends, grad.size(0), [&](int64_t g, int64_t first, int64_t count) {
    at::Tensor row = gradient[g];
    at::sum_out(row, grad.narrow(0, first, count), 0);
  });
  return gradient;
}

}  // namespace lehr::ops

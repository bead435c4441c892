// Grouped matmuls in float8: group by group with ops/matmul/matmul.h, or ATen's scaled grouped matmul on a GPU.
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include "lehr/meter/on_meta.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/float8/float8.h"
#include "lehr/ops/grouped_linear/cuda.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/grouped_linear/groups.h"
#include "lehr/ops/grouped_linear_float8/cuda.h"
#include "lehr/ops/matmul/matmul.h"

namespace lehr::ops {

namespace {
using Maximum = Float8Split::Maximum;

void check_on_device(const at::Tensor& input, const at::Tensor& weight) {
  const bool on_device = cuda::multiplies_groups(input);
  require(
      on_device || !input.is_cuda(),
      "grouped_linear_float8: expected rows of BFloat16, as a GPU requires, found {}",
      c10::toString(input.scalar_type()));
  require(
      !on_device || (weight.size(1) % kFloat8Multiple == 0 && weight.size(2) % kFloat8Multiple == 0),
      "grouped_linear_float8: expected weights whose sizes are multiples of {}, as a GPU requires, found {}",
      kFloat8Multiple,
      shape_of(weight));
}

at::Tensor forward_product(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias) {
  check_on_device(input, weight);
  if (cuda::multiplies_groups(input)) {
    const at::Tensor output = cuda::grouped_float8_product(input, weight, ends);
    return bias.defined() ? cuda::add_group_bias_(output, bias, ends) : output;
  }
  const at::Tensor left = round_rows_to_float8(input);
  const at::Tensor right = round_rows_to_float8(weight.reshape({-1, weight.size(2)})).view(weight.sizes());
  return product_of_groups(left, right, ends, bias);
}

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) {
  if (cuda::multiplies_groups(grad)) {
    return cuda::grouped_float8_input_gradient(grad, weight, ends);
  }
  const at::Tensor left = round_rows_to_float8(grad);
  const at::Tensor right = round_columns_to_float8(weight);
  return input_gradient_of_groups(left, right, ends);
}

// Returns the largest elements (G, columns of all matrices) of the columns of each group's rows.
at::Tensor largest_of_columns(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  const at::Tensor largest = at::zeros({ends.size(0), a.size(1) + b.size(1)}, a.options().dtype(at::kFloat));
  for_each_group(ends, a.size(0), [&](int64_t g, int64_t first, int64_t count) {
    largest[g].narrow(0, 0, a.size(1)).copy_(largest_of_rows(a.narrow(0, first, count).t()));
    largest[g].narrow(0, a.size(1), b.size(1)).copy_(largest_of_rows(b.narrow(0, first, count).t()));
  });
  return largest;
}

// `maximum` is over ranks that have other rows of the same experts; null if there are none.
at::Tensor float8_weight_gradient(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends, const Maximum& maximum) {
  if (cuda::multiplies_groups(grad)) {
    return cuda::grouped_float8_weight_gradient(grad, input, ends, maximum);
  }
  at::Tensor largest;
  if (maximum) {
    largest = largest_of_columns(grad, input, ends);
    maximum(largest.view(-1));
  }
  // Returns the group's rows, transposed, as float8 represents them; `begin` is the first of its columns in `largest`.
  const auto rounded = [&](const at::Tensor& rows, int64_t group, int64_t begin) {
    return maximum ? values_of(
                         to_float8_rows_by(largest[group].narrow(0, begin, rows.size(1)), rows.t()), rows.scalar_type())
                   : round_rows_to_float8(rows.t());
  };
  return weight_gradient_of_groups(
      grad, input, ends, [&](const at::Tensor& gradient, int64_t g, int64_t first, int64_t count) {
        const at::Tensor left = rounded(grad.narrow(0, first, count), g, 0);               // (out, n)
        const at::Tensor right = rounded(input.narrow(0, first, count), g, grad.size(1));  // (in, n)
        put_product(gradient, left, right.t());
      });
}

// Autograd saves the operands unrounded, because the gradients need other scales.
struct Float8Matmuls : GroupMatmuls {
  explicit Float8Matmuls(Float8Recipe one) : recipe(one), split(Float8SplitScope::current()) {}

  Names names() const override {
    return {"grouped_linear_float8", "lehr::grouped_linear_float8_again", "lehr::grouped_linear_float8_backward"};
  }

  at::Tensor product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias)
      const override {
    return forward_product(input, weight, ends, bias);
  }
  at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) const override {
    return ops::input_gradient(grad, weight, ends);
  }
  at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends) const override {
    return recipe == Float8Recipe::rowwise
               ? float8_weight_gradient(grad, input, ends, split ? split->tokens : Maximum())
               : GroupMatmuls::weight_gradient(grad, input, ends);
  }

  Float8Recipe recipe;
  c10::intrusive_ptr<Float8Split> split;
};
}  // namespace

c10::intrusive_ptr<GroupMatmuls> float8_group_matmuls(Float8Recipe recipe) {
  return c10::make_intrusive<Float8Matmuls>(recipe);
}

at::Tensor grouped_linear_float8(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& ends,
    const at::Tensor& bias,
    Float8Recipe recipe) {
  if (operator_watch() != nullptr || (input.is_meta() && !runs_on_meta())) {
    return grouped_linear(input, weight, ends, bias);  // with the same shapes and placements
  }
  const OperatorScope scope(OperatorKind::matmul, "lehr::grouped_linear_float8");
  check_grouped_linear("grouped_linear_float8", input, weight, ends, bias);
  return grouped_linear_by(float8_group_matmuls(recipe), input, weight, ends, bias);
}

void require_grouped_float8(at::Device device, at::ScalarType type, const char* subject) {
  if (device.is_cpu()) {
    return;
  }
  require(device.is_cuda(), "{}: float8 matmuls run on CPUs and NVIDIA GPUs, found {}", subject, device.str());
  require(
      type == at::kBFloat16,
      "{}: on a GPU the grouped matmuls of experts in float8 compute in bfloat16, found {}; set "
      "training.mixed_precision_param = \"bfloat16\"",
      subject,
      c10::toString(type));
  try {
    const auto options = at::TensorOptions().device(device).dtype(type);
    const at::Tensor rows = at::ones({kFloat8Multiple, kFloat8Multiple}, options);
    const at::Tensor weight = at::ones({1, kFloat8Multiple, kFloat8Multiple}, options).requires_grad_();
    const at::Tensor ends = at::full({1}, kFloat8Multiple, options.dtype(at::kInt));
    const at::AutoGradMode with_gradients(true);
    grouped_linear_float8(rows, weight, ends).sum().backward();
    weight.grad().sum().item();  // waits for the result
  } catch (const c10::Error& error) {
    fail(
        "{}: {} cannot multiply groups in float8; expected a GPU of compute capability 9.0 or 10.0 (Hopper, "
        "Blackwell); leave the key out: {}",
        subject,
        device.str(),
        error.what_without_backtrace());
  }
}

}  // namespace lehr::ops

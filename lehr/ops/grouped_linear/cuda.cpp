// Grouped matmuls on a GPU, by at::_grouped_mm within its requirements.
//
// On compute capability 9.0 and 10.x at::_grouped_mm is one CUTLASS kernel that reads the ends of the groups on the
// device; elsewhere ATen copies them to the host and multiplies group by group. The kernel requires operands whose
// beginning and rows are aligned to 16 bytes, so sizes that are not multiples of 8 (ranks of adapters) are padded with
// zeros. In the layouts used here it has no requirement on the number of rows of a group: a group begins at a row of
// the left operand or, for the weight's gradient, at a column of grad^T and a row of the input. Other layouts would
// require groups of multiples of 8 rows and no empty group, which is why other libraries pad groups.
#include "lehr/ops/grouped_linear/cuda.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include "lehr/meter/operation_meter.h"
#include "lehr/ops/device.h"
#include "lehr/ops/grouped_linear/kernels.h"

namespace lehr::ops::cuda {

namespace {
constexpr int64_t kAlignedElements = 8;  // bfloat16 elements in 16 bytes

int64_t lacking(int64_t size) {
  return (kAlignedElements - size % kAlignedElements) % kAlignedElements;
}

// Pads the last dimension with zeros, which do not change sums along it and are cut off otherwise.
at::Tensor operand(const at::Tensor& tensor) {
  const int64_t more = lacking(tensor.size(-1));
  return more == 0 ? aligned_for_kernels(tensor.contiguous()) : at::constant_pad_nd(tensor, {0, more});
}

}  // namespace

bool multiplies_groups(const at::Tensor& rows) {
  return on_gpu(rows) && rows.scalar_type() == at::kBFloat16;
}

void clear_groups_without_rows(const at::Tensor& gradient, const at::Tensor& ends) {
  if (!supports(gradient)) {
    const at::Tensor first = at::zeros({1}, ends.options());
    const at::Tensor begins = at::cat({first, ends.narrow(0, 0, ends.size(0) - 1)});
    gradient.masked_fill_((ends == begins).view({-1, 1, 1}), 0);
    return;
  }
  report_moved({ends, ends});
  run<GroupedLinearLaunches>("grouped_linear", gradient, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    return kernels.clear_empty_groups(
        cpu::elements<T>(gradient), ends.const_data_ptr<int32_t>(), ends.size(0), gradient.size(1) * gradient.size(2));
  });
}

at::Tensor grouped_product(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& ends) {
  if (rows.size(0) == 0) {
    return at::zeros({0, weight.size(1)}, rows.options());
  }
  return at::_grouped_mm(operand(rows), operand(weight).transpose(1, 2), ends).contiguous();
}

at::Tensor grouped_input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) {
  if (grad.size(0) == 0) {
    return at::zeros({0, weight.size(2)}, grad.options());
  }
  const int64_t more = lacking(weight.size(1));
  const at::Tensor outputs = more == 0 ? weight : at::constant_pad_nd(weight, {0, 0, 0, more});
  return at::_grouped_mm(operand(grad), operand(outputs), ends).narrow(1, 0, weight.size(2)).contiguous();
}

at::Tensor grouped_weight_gradient(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends) {
  if (grad.size(0) == 0) {
    return at::zeros({ends.size(0), grad.size(1), input.size(1)}, grad.options());
  }
  const at::Tensor gradient = at::_grouped_mm(operand(grad).t(), operand(input), ends);
  clear_groups_without_rows(gradient, ends);
  return gradient.narrow(1, 0, grad.size(1)).narrow(2, 0, input.size(1)).contiguous();
}

at::Tensor add_group_bias_(const at::Tensor& output, const at::Tensor& bias, const at::Tensor& ends) {
  // The first group that ends after a row is the row's.
  const at::Tensor rows = at::arange(output.size(0), ends.options());
  const at::Tensor groups = at::searchsorted(ends, rows, /*out_int32=*/false, /*right=*/true);
  return at::Tensor(output).add_(bias.index_select(0, groups));
}

}  // namespace lehr::ops::cuda

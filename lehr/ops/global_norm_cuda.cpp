// The global norm and scaling of many tensors on a GPU. Lists of tensors are passed to kernels by value.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "lehr/ops/cuda.h"

namespace lehr::ops::cuda {

namespace {
// Calls body(list, index of its first piece) for the tensors of one dtype, as many at a time as a list holds.
template <class Body>
int64_t over_lists(const std::vector<at::Tensor>& tensors, at::ScalarType type, int64_t pieces, const Body& body) {
  TensorList list = {};
  const auto launch = [&] {
    if (list.tensors > 0) {
      body(list, pieces);
    }
    pieces += list.pieces;
    list = {};
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != type || tensor.numel() == 0) {
      continue;
    }
    const auto at = static_cast<size_t>(list.tensors++);
    list.data[at] = tensor.data_ptr();
    list.count[at] = tensor.numel();
    list.first_piece[at] = list.pieces;
    list.pieces += (tensor.numel() + kListPiece - 1) / kListPiece;
    if (list.tensors == TensorList::kMost) {
      launch();
    }
  }
  launch();
  return pieces;
}

constexpr std::array kTypes = {at::kFloat, at::kBFloat16};
}  // namespace

at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors) {
  const auto options = tensors.front().options().dtype(at::kDouble);
  int64_t pieces = 0;
  for (const at::ScalarType type : kTypes) {
    pieces = over_lists(tensors, type, pieces, [](const TensorList&, int64_t) {});
  }
  const at::Tensor sums = at::empty({pieces}, options);
  const at::Tensor total = at::empty({}, options);
  const c10::DeviceGuard guard(tensors.front().device());
  int64_t done = 0;
  for (const at::ScalarType type : kTypes) {
    done = over_lists(tensors, type, done, [&](const TensorList& list, int64_t first) {
      double* const to = cpu::elements<double>(sums) + first;
      check_status(
          "global_norm",
          type == at::kFloat ? table().get<RestTable<float>>().sums_of_squares(list, to)
                             : table().get<RestTable<Bf16>>().sums_of_squares(list, to));
    });
  }
  check_status(
      "global_norm", table().get<PlainTable>().sum(cpu::elements<double>(sums), pieces, cpu::elements<double>(total)));
  return total;
}

void scale_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  const c10::DeviceGuard guard(tensors.front().device());
  const auto options = tensors.front().options().dtype(at::kDouble);
  const at::Tensor on_device = on_gpu(factor) ? factor.to(options) : at::full({}, factor.item<double>(), options);
  const double* const by = cpu::elements<double>(on_device);
  for (const at::ScalarType type : kTypes) {
    over_lists(tensors, type, 0, [&](const TensorList& list, int64_t) {
      check_status(
          "scale_",
          type == at::kFloat ? table().get<RestTable<float>>().scale(list, by)
                             : table().get<RestTable<Bf16>>().scale(list, by));
    });
  }
}

}  // namespace lehr::ops::cuda

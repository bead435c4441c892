// Global norm and scaling of a list of tensors, which threads share in pieces.
#include "lehr/ops/global_norm/global_norm.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <map>

#include "lehr/base/parallel.h"
#include "lehr/base/pieces.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/device.h"
#include "lehr/ops/global_norm/kernels.h"

namespace lehr::ops {

namespace cuda {
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

// Returns the sum of all squares as a float64 scalar on the tensors' device. All tensors are on one device, dense, and
// accepted by `supports`. The order of the sum depends only on the shapes, and nothing is read back.
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
          type == at::kFloat ? table().get<GlobalNormLaunches<float>>().sums_of_squares(list, to)
                             : table().get<GlobalNormLaunches<Bf16>>().sums_of_squares(list, to));
    });
  }
  check_status(
      "global_norm", table().get<SumLaunches>().sum(cpu::elements<double>(sums), pieces, cpu::elements<double>(total)));
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
          type == at::kFloat ? table().get<GlobalNormLaunches<float>>().scale(list, by)
                             : table().get<GlobalNormLaunches<Bf16>>().scale(list, by));
    });
  }
}
}  // namespace
}  // namespace cuda

namespace {
constexpr int64_t kPiece = 1 << 16;

bool has_cuda_kernel(const at::Tensor& tensor) {
  return cuda::supports(tensor) && tensor.is_non_overlapping_and_dense();
}

bool has_kernel(const at::Tensor& tensor) {
  return tensor.is_cpu() && cpu::supports(tensor) && tensor.is_non_overlapping_and_dense() && !has_cuda_kernel(tensor);
}

// Returns the tensors with CUDA kernels, by device.
std::map<int, std::vector<at::Tensor>> on_gpus(const std::vector<at::Tensor>& tensors) {
  std::map<int, std::vector<at::Tensor>> lists;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0 && has_cuda_kernel(tensor)) {
      lists[tensor.device().index()].push_back(tensor);
    }
  }
  return lists;
}

// Returns the pieces of the tensors that have CPU kernels.
std::vector<Piece> cpu_pieces(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(tensor.defined() && has_kernel(tensor) ? tensor.numel() : 0);
  }
  return pieces_of(sizes, kPiece);
}

// Calls body(i, elements, count, kernels) for each piece i of the tensors, on several threads.
template <class Body>
void for_each_piece(const std::vector<at::Tensor>& tensors, const std::vector<Piece>& pieces, const Body& body) {
  const Arch arch = current_arch();
  parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      const Piece& piece = pieces[i];
      const at::Tensor& tensor = tensors[piece.index];
      cpu::with_element_type(tensor.scalar_type(), [&](auto element) {
        using T = decltype(element);
        body(
            i,
            cpu::elements<T>(tensor) + piece.first,
            piece.last - piece.first,
            cpu_kernels<GlobalNormKernels<T>>(arch));
      });
    }
  });
}
}  // namespace

at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors) {
  const OperatorScope scope(OperatorKind::clipping, "lehr::sum_of_squares");
  report_moved(tensors);
  const at::NoGradGuard no_grad;
  const std::vector<Piece> pieces = cpu_pieces(tensors);
  std::vector<double> sums(pieces.size());
  for_each_piece(tensors, pieces, [&](size_t i, const auto* values, int64_t count, const auto& kernels) {
    sums[i] = kernels.sum_of_squares(values, count);
  });
  double sum = 0;  // in the order of pieces, not of threads
  for (const double part : sums) {
    sum += part;
  }
  std::vector<at::Tensor> rest;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0 && !has_kernel(tensor) && !has_cuda_kernel(tensor)) {
      rest.push_back(tensor);
    }
  }
  at::Tensor total = at::scalar_tensor(sum, at::kDouble);
  const auto add = [&](const at::Tensor& more) {
    total = more + (total.is_cpu() ? total : total.to(more.device()));  // ATen adds CPU scalars to tensors anywhere
  };
  for (const auto& [index, list] : on_gpus(tensors)) {
    add(cuda::sum_of_squares(list));
  }
  if (!rest.empty()) {
    add(at::stack(at::_foreach_norm(rest, 2, at::kDouble)).square().sum());
  }
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      return total.to(tensor.device());
    }
  }
  return total;
}

at::Tensor global_norm(const std::vector<at::Tensor>& tensors) {
  return sum_of_squares(tensors).sqrt();
}

namespace {
// Scales the tensors that have CPU kernels.
void scale_pieces(const std::vector<at::Tensor>& tensors, double factor) {
  for_each_piece(tensors, cpu_pieces(tensors), [&](size_t, auto* values, int64_t count, const auto& kernels) {
    kernels.scale(values, factor, count);
  });
}
}  // namespace

void scale_(const std::vector<at::Tensor>& tensors, const at::Tensor& of_any_type) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = of_any_type.detach().to(at::kDouble).reshape({});
  if (!cuda::on_gpu(factor) && factor.item<double>() == 1) {
    return;
  }
  report_moved(tensors);  // reads
  report_moved(tensors);  // writes
  if (std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined() && has_kernel(t); })) {
    scale_pieces(tensors, factor.item<double>());
  }
  for (const auto& [index, list] : on_gpus(tensors)) {
    cuda::scale_(list, factor);
  }
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    if (has_kernel(tensor) || has_cuda_kernel(tensor)) {
      tensor.unsafeGetTensorImpl()->bump_version();
    } else if (factor.is_cpu()) {
      tensor.mul_(factor);
    } else {
      tensor.copy_(tensor.to(at::kDouble) * factor);  // ATen would round the factor to the tensor's type
    }
  }
}

}  // namespace lehr::ops

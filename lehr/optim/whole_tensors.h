// Whole tensors for optimizers whose update of an element depends on more of its tensor than this rank's shard.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::optim {

/// The computation of an optimizer on whole tensors.
struct WholeTensorWork {
  /// The last `dims` dimensions must be whole. Those before them number independent tensors, such as experts.
  int64_t dims = 2;
  /// Returns the cost of a tensor with these last `dims` sizes, in any unit. Ranks share the work by it.
  std::function<double(at::IntArrayRef shape)> cost = {};
  /// Replaces each tensor by one of the same shape and dtype. Ranks call it different numbers of times.
  std::function<void(std::vector<at::Tensor>& tensors)> compute = {};
};

/// A tensor of which this rank holds the same region as of the parameter `name`, which may be empty.
struct TensorPart {
  std::string name = {};
  at::Tensor tensor = {};  ///< Contiguous.
};

/// Gathers tensors that are sharded like parameters, computes with each of them on one rank, and scatters the results.
class WholeTensors {
 public:
  WholeTensors() = default;
  virtual ~WholeTensors() = default;
  WholeTensors(const WholeTensors&) = delete;
  WholeTensors& operator=(const WholeTensors&) = delete;

  /// Replaces each part in place by the same region of the computed whole tensor. All parts are of one dtype and
  /// device. All ranks that hold the parameters call it together, with the same names and the same work. Ranks that
  /// hold the same region get the same bits.
  virtual void apply(const std::vector<TensorPart>& parts, const WholeTensorWork& work) = 0;
};

}  // namespace lehr::optim

// The types of the tensors of a forward pass, for its abstract interpretation (follow_types.h).
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/shard/tensor_type.h"

namespace lehr::shard {

/// The types of all tensors of one forward pass. A tensor that was not set is a constant, the same on all ranks.
class TypeChecker {
 public:
  /// Both must outlive the checker. Messages use the names of `root`'s modules.
  TypeChecker(const mesh::DistributedContext& context, const torch::nn::Module& root);

  /// Sets the type of a tensor; `parameter` is its name if it is one. Integers have no gradient, so replicate and
  /// invariant do not differ for them.
  void set(const at::Tensor& tensor, TensorType type, const std::string& parameter = {});
  TensorType type_of(const at::Tensor& tensor) const;
  bool knows(const at::Tensor& tensor) const { return tensor.defined() && known_.contains(key_of(tensor)); }
  /// Returns the tensor as an operand, called `name` in messages unless it is a parameter.
  Operand operand(const at::Tensor& tensor, const std::string& name) const;

  /// Returns the axes of more than one rank that a layout's axis covers: fsdp covers dp_shard and cp.
  AxisSet axes_of(const std::string& axis) const;
  /// Returns the axes of the dense domain that a group of ranks spans. Groups are identified by their ranks, as groups
  /// of both domains may be the same. Throws a usage error if the group lacks ranks of these axes.
  AxisSet axes_of(const std::vector<int64_t>& ranks) const;
  int64_t ranks(size_t axis) const { return ranks_[axis]; }

  /// Called when a module begins and ends its forward, so that messages can name it.
  void enter(const torch::nn::Module& module);
  void leave();

  /// Returns the name of the module that runs now, or that an exception has left.
  std::string where() const;
  /// Throws `message` of an operator as a usage error, with the name of the module that called it.
  [[noreturn]] void fail_at(const std::string& operation, const std::string& message) const;

 private:
  struct Known {
    at::Tensor tensor;  // kept alive, so that no other tensor gets its address
    TensorType type;
    std::string parameter;
  };
  static const void* key_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

  std::array<int64_t, kAxes> ranks_{};
  std::unordered_map<const void*, Known> known_;
  std::unordered_map<const torch::nn::Module*, std::string> names_;
  std::vector<std::string> calls_;
  std::string left_by_exception_;
};

}  // namespace lehr::shard

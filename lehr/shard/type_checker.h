// Runs a model's forward on meta tensors and follows the type of every tensor (abstract interpretation): ATen's
// operators are caught before autograd sees them, Lehr's own state what they are (base/operator_watch.h).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/base/operator_watch.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/shard/tensor_type.h"

namespace lehr::shard {

/// The types of one forward. A tensor that is not known is the same on all ranks.
class TypeChecker : public OperatorWatch {
 public:
  /// Both must outlive the checker. `root`'s modules give messages their names.
  TypeChecker(const mesh::DistributedContext& context, const torch::nn::Module& root);

  /// What a tensor is from now on; `parameter` is its name if it is one. Integers have no gradient, so that replicate
  /// and invariant are no difference.
  void set(const at::Tensor& tensor, TensorType type, const std::string& parameter = {});
  TensorType type_of(const at::Tensor& tensor) const;
  bool knows(const at::Tensor& tensor) const { return tensor.defined() && known_.contains(key_of(tensor)); }
  /// The tensor as an operand that messages call `name`, unless it is a parameter.
  Operand operand(const at::Tensor& tensor, const std::string& name) const;

  /// The axes of more than one rank that a layout's axis stands for: fsdp for dp_shard and cp.
  AxisSet axes_of(const std::string& axis) const;
  /// The axes of the dense domain along which these ranks lie; groups are known by their ranks, as those of both
  /// domains may be the same. Throws a usage error if they are not all ranks along them.
  AxisSet axes_of(const std::vector<int64_t>& ranks) const;
  int64_t ranks(size_t axis) const { return ranks_[axis]; }

  at::Tensor state(const Statement& statement) override;
  void enter(const torch::nn::Module& module) override;
  void leave() override;

  /// The module whose call is under way, or was when an exception left it.
  std::string where() const;
  /// `message` of an operator, with the place where it was called.
  [[noreturn]] void fail_at(const std::string& operation, const std::string& message) const;

 private:
  struct Known {
    at::Tensor tensor;  // so that no other takes its place in memory
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

/// Lets a checker follow all operators of this thread.
class FollowTypes {
 public:
  explicit FollowTypes(TypeChecker& checker);
  ~FollowTypes();
  FollowTypes(const FollowTypes&) = delete;
  FollowTypes& operator=(const FollowTypes&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace lehr::shard

// One call of an ATen operator, as the typing rules see it.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/shard/type_checker.h"

namespace c10 {
class OperatorHandle;
}

namespace lehr::shard {

/// A call whose arguments are on the dispatcher's stack.
class AtenCall {
 public:
  AtenCall(TypeChecker& checker, const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

  TypeChecker& checker() { return checker_; }
  /// "add" for aten::add_.Tensor.
  const std::string& name() const { return name_; }
  /// Returns argument number `i`; none if there are fewer.
  const c10::IValue& arg(size_t i) const;
  /// Returns an argument by name; none if there is no such argument.
  const c10::IValue& arg(const std::string& name) const;
  /// Returns a tensor argument as an operand.
  Operand operand(size_t i) const;
  /// All tensors among the arguments, those of lists too, in order.
  const std::vector<Operand>& operands() const { return operands_; }

  /// Runs the operator on meta.
  void run();
  /// Puts an empty result of type `type` on the stack. Replaces `run` and `give` for an operator without a meta kernel.
  void replace_by(at::ScalarType dtype, const TensorType& type);
  /// After `run`: `result_sizes` returns the sizes of result number `i`, `give` sets its type.
  std::vector<int64_t> result_sizes(size_t i = 0) const;
  size_t num_results() const;
  void give(TensorType type, size_t i = 0);
  /// Gives all results the same type.
  void give_all(const TensorType& type);

 private:
  at::Tensor result(size_t i) const;

  TypeChecker& checker_;
  const c10::OperatorHandle& op_;
  std::vector<c10::IValue>& stack_;
  std::string name_;
  std::vector<c10::IValue> args_;
  std::vector<Operand> operands_;
};

/// Returns the index of a dimension of a tensor with `rank` dimensions; negative ones count from the end.
inline size_t wrapped(int64_t dim, size_t rank) {
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

/// Runs the call and sets the types of its results, or throws a usage error that names the mistake.
using AtenRule = std::function<void(AtenCall&)>;
/// Rules by the name of the operator.
using AtenRules = std::unordered_map<std::string, AtenRule>;

/// Returns all rules by name, without "aten::" and the trailing underscore of in-place forms. Composite operators need
/// none.
const AtenRules& aten_rules();
/// Each adds one section of the table.
void add_pointwise_rules(AtenRules& rules);
void add_reduction_rules(AtenRules& rules);
void add_view_rules(AtenRules& rules);
void add_indexing_rules(AtenRules& rules);

}  // namespace lehr::shard

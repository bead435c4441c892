// One call of an ATen operator, for the rules that give its results' types.
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

/// A call whose arguments lie on the stack.
class AtenCall {
 public:
  AtenCall(TypeChecker& checker, const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

  TypeChecker& checker() { return checker_; }
  /// "add" of aten::add_.Tensor
  const std::string& name() const { return name_; }
  /// Argument number `i`; none if there are fewer.
  const c10::IValue& arg(size_t i) const;
  /// By name; none if there is no such argument.
  const c10::IValue& arg(const std::string& name) const;
  /// A tensor argument as an operand.
  Operand operand(size_t i) const;
  /// All tensors among the arguments, those of lists too, in order.
  const std::vector<Operand>& operands() const { return operands_; }

  /// Runs the operator on meta.
  void run();
  /// In the place of `run` and `give`, for an operator that does not run on meta.
  void replace_by(at::ScalarType dtype, const TensorType& type);
  /// After `run`: sizes of result number `i`, and what it is from now on.
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

/// Runs the call and gives its results their types, or throws a usage error that says what is wrong with it.
using AtenRule = std::function<void(AtenCall&)>;
using AtenRules = std::unordered_map<std::string, AtenRule>;

/// By name, without "aten::" and the mark of in-place forms. Operators that are made of others need none.
const AtenRules& aten_rules();
/// The parts of the table.
void add_pointwise_rules(AtenRules& rules);
void add_reduction_rules(AtenRules& rules);
void add_view_rules(AtenRules& rules);
void add_indexing_rules(AtenRules& rules);

}  // namespace lehr::shard

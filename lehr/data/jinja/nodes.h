// The syntax tree of a template: expressions, which have values, and statements, which write output.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/jinja/budget.h"
#include "lehr/data/jinja/builtins.h"
#include "lehr/data/jinja/value.h"

namespace lehr::data::jinja {

/// Variables by name. Bodies of `for` and macros have their own scope, inside the surrounding ones.
struct Scope {
  std::shared_ptr<Scope> outer;
  Dict names;
};

/// Byte ranges of the output.
using Spans = std::vector<std::pair<size_t, size_t>>;

/// The execution context of a statement.
struct Frame {
  std::shared_ptr<Scope> scope;
  std::string& out;
  Spans* generated;  ///< Ranges written by {% generation %}; null inside macros and set blocks.
  Budget& budget;
};

/// A node with a value. `value` fills in the line of a Problem that has none.
class Expression {
 public:
  explicit Expression(int line) : line_(line) {}
  virtual ~Expression() = default;
  Value value(const Frame& frame) const;
  int line() const { return line_; }

 protected:
  virtual Value evaluate(const Frame& frame) const = 0;

 private:
  int line_;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

/// The effect of a statement on the surrounding loop.
enum class Flow { next, break_loop, continue_loop };

/// A node that writes output or changes variables.
class Statement {
 public:
  virtual ~Statement() = default;
  virtual Flow run(Frame& frame) const = 0;
};
using Body = std::vector<std::unique_ptr<const Statement>>;

/// Runs statements in order until one leaves the surrounding loop.
Flow run(const Body& body, Frame& frame);

// --- expressions -----------------------------------------------------------------------------------------------------

/// A constant.
struct Literal : Expression {
  Literal(int line, Value v) : Expression(line), constant(std::move(v)) {}
  Value evaluate(const Frame&) const override { return constant; }
  Value constant;
};

/// A variable; undefined if no scope has it.
struct Name : Expression {
  Name(int line, std::string n) : Expression(line), name(std::move(n)) {}
  Value evaluate(const Frame& frame) const override;
  std::string name;
};

/// [a, b] and (a, b)
struct ListLiteral : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};

/// {key: value, ...}
struct DictLiteral : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

/// object.name
struct Attribute : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr object;
  std::string name;
};

/// object[key]
struct Item : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr object;
  ExpressionPtr key;
};

/// object[start:stop:step]; each part is optional
struct Slice : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr object;
  ExpressionPtr start, stop, step;
};

/// The expressions in the parentheses of a call.
struct ArgumentList {
  Arguments values(const Frame& frame) const;
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

/// function(arguments)
struct Call : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr function;
  ArgumentList arguments;
};

/// input | filter(arguments)
struct FilterCall : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr input;
  Filter filter = nullptr;
  ArgumentList arguments;
};

/// input is test(arguments)
struct TestCall : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr input;
  Test test = nullptr;
  ArgumentList arguments;
};

/// Binary operators: + - * / // % ** and ~.
enum class Operator { add, subtract, multiply, divide, floor_divide, modulo, power, concatenate };

/// left op right
struct Binary : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  Operator op = Operator::add;
  ExpressionPtr left, right;
};

/// -x and +x
struct Sign : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr operand;
  bool negative = false;
};

/// a < b <= c: compares each operand with the next one
struct Comparison : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> rest;  // operator and operand; also "in" and "not in"
};

/// `and` and `or`, which return one of their operands
struct Logical : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  bool is_and = false;
  ExpressionPtr left, right;
};

/// not operand
struct Not : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr operand;
};

/// a if condition else b
struct Conditional : Expression {
  using Expression::Expression;
  Value evaluate(const Frame& frame) const override;
  ExpressionPtr condition, then, otherwise;  // otherwise is optional
};

// --- statements ------------------------------------------------------------------------------------------------------

/// Literal text.
struct Text : Statement {
  Flow run(Frame& frame) const override;
  std::string text;
};

/// {{ expression }}
struct Output : Statement {
  Flow run(Frame& frame) const override;
  ExpressionPtr expression;
};

/// {% if %}, with its {% elif %} and {% else %} branches.
struct If : Statement {
  Flow run(Frame& frame) const override;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};

/// The target of `for` and `set`: a name, several names (a list is unpacked), or an entry of a namespace.
struct Target {
  void assign(Value value, Scope& scope, const Frame& frame) const;
  std::vector<std::string> names;
  std::string entry{};  // of the namespace names[0]
  int line = 0;
};

/// {% for target in sequence if condition %}body{% else %}otherwise{% endfor %}
struct For : Statement {
  Flow run(Frame& frame) const override;
  Target target;
  ExpressionPtr sequence;
  ExpressionPtr condition;  // may be null
  Body body;
  Body otherwise;
};

/// {% set x = expression %}, and {% set x %}body{% endset %} with an optional filter
struct Set : Statement {
  Flow run(Frame& frame) const override;
  static constexpr const char* kCaptured = "";  // name under which filters of a set block find its text
  Target target;
  ExpressionPtr expression;
  bool captures = false;
  Body body;
};

/// {% macro name(parameters) %}body{% endmacro %}
struct Macro : Statement {
  Flow run(Frame& frame) const override;
  Value call(const Arguments& arguments, std::shared_ptr<Scope> scope, Budget& budget) const;
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with its default value, or null
  Body body;
};

/// {% generation %}: text that transformers marks as the assistant's
struct Generation : Statement {
  Flow run(Frame& frame) const override;
  Body body;
  int line = 0;
};

/// {% break %} and {% continue %}
struct LeaveLoop : Statement {
  explicit LeaveLoop(Flow f) : flow(f) {}
  Flow run(Frame&) const override { return flow; }
  Flow flow;
};

}  // namespace lehr::data::jinja

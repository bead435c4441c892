// Evaluation of expressions.
#include <algorithm>
#include <cmath>

#include "lehr/data/jinja/nodes.h"
#include "lehr/data/jinja/text.h"

namespace lehr::data::jinja {
namespace {

constexpr int64_t kMaxRepeated = 1 << 20;

void check(bool overflow) {
  if (overflow) {
    refuse("the result is too large for 64 bits");
  }
}

Value repeated(const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (times > kMaxRepeated || length(value) * times > kMaxRepeated) {
    refuse("'*' makes more than {} elements", kMaxRepeated);
  }
  require_bytes(value.own_bytes() * static_cast<size_t>(times), "'*'");
  std::string text;
  List items;
  for (int64_t i = 0; i < times; ++i) {
    if (value.is_string()) {
      text += *value.get<std::string>();
    } else {
      const List more = value.elements("'*'");
      items.insert(items.end(), more.begin(), more.end());
    }
  }
  return value.is_string() ? Value(std::move(text)) : Value::list(std::move(items));
}

Value integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::add:
      check(__builtin_add_overflow(a, b, &result));
      return Value(result);
    case Operator::subtract:
      check(__builtin_sub_overflow(a, b, &result));
      return Value(result);
    case Operator::multiply:
      check(__builtin_mul_overflow(a, b, &result));
      return Value(result);
    case Operator::floor_divide:
    case Operator::modulo: {
      check(b == -1 && a == INT64_MIN);
      const int64_t down = a % b != 0 && (a < 0) != (b < 0) ? 1 : 0;  // Python rounds down, C++ towards zero
      return Value(op == Operator::modulo ? a % b + down * b : a / b - down);
    }
    default: {
      result = 1;
      if (a == -1) {
        return Value(b % 2 == 0 ? int64_t{1} : int64_t{-1});
      }
      for (int64_t i = 0; i < b; ++i) {
        const int64_t before = result;
        check(__builtin_mul_overflow(before, a, &result));
        if (result == before) {
          break;  // 0 and 1 do not change
        }
      }
      return Value(result);
    }
  }
}

Value floats(Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return Value(a + b);
    case Operator::subtract:
      return Value(a - b);
    case Operator::multiply:
      return Value(a * b);
    case Operator::divide:
      return Value(a / b);
    case Operator::floor_divide:
      return Value(std::floor(a / b));
    case Operator::modulo:
      return Value(a - b * std::floor(a / b));
    default:
      return Value(std::pow(a, b));
  }
}

Value arithmetic(Operator op, const Value& a, const Value& b) {
  static constexpr const char* kNames[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
  const char* name = kNames[static_cast<size_t>(op)];
  if (op == Operator::add && a.is_string() && b.is_string()) {
    require_bytes(a.copied_bytes() + b.copied_bytes(), "'+'");
    return Value(*a.get<std::string>() + *b.get<std::string>());
  }
  if (op == Operator::add && a.is_list() && b.is_list()) {
    require_bytes(a.own_bytes() + b.own_bytes(), "'+'");
    List items = a.elements("'+'");
    const List more = b.elements("'+'");
    items.insert(items.end(), more.begin(), more.end());
    return Value::list(std::move(items));
  }
  if (op == Operator::multiply && (a.is_string() || a.is_list()) && b.is_integer()) {
    return repeated(a, b.as_integer("'*'"));
  }
  if (op == Operator::multiply && (b.is_string() || b.is_list()) && a.is_integer()) {
    return repeated(b, a.as_integer("'*'"));
  }
  if (op == Operator::modulo && a.is_string()) {
    refuse("'%' as a string format is not supported");
  }
  if (!a.is_number() || !b.is_number()) {
    refuse("'{}' between {} and {} is not defined", name, a.describe(), b.describe());
  }
  const bool divides = op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo;
  if (divides && b.as_number(name) == 0) {
    refuse("'{}' divides by zero", name);
  }
  const bool whole =
      a.is_integer() && b.is_integer() && op != Operator::divide && !(op == Operator::power && b.as_integer(name) < 0);
  return whole ? integers(op, a.as_integer(name), b.as_integer(name))
               : floats(op, a.as_number(name), b.as_number(name));
}

bool compare(const std::string& op, const Value& a, const Value& b) {
  if (op == "==" || op == "!=") {
    return equal(a, b) == (op == "==");
  }
  if (op == "in" || op == "not in") {
    return contains(b, a) == (op == "in");
  }
  if (op == "<" || op == ">=") {
    return less(a, b) == (op == "<");
  }
  return less(b, a) == (op == ">");
}

}  // namespace

Value Expression::value(const Frame& frame) const {
  try {
    const Budget::Level level(frame.budget);
    Value value = evaluate(frame);
    frame.budget.spend(Budget::kEvaluation + value.copied_bytes());
    return value;
  } catch (const Problem& problem) {
    if (problem.line() > 0) {
      throw;
    }
    throw Problem(problem.what(), line_);
  }
}

Value Name::evaluate(const Frame& frame) const {
  for (const Scope* scope = frame.scope.get(); scope != nullptr; scope = scope->outer.get()) {
    frame.budget.spend(scope->names.size());
    if (const Value* found = find(scope->names, name)) {
      return *found;
    }
  }
  return Value::undefined(name);
}

Value ListLiteral::evaluate(const Frame& frame) const {
  List values;
  for (const auto& item : items) {
    values.push_back(item->value(frame));
  }
  return frame.budget.spend_on(Value::list(std::move(values), is_tuple));
}

Value DictLiteral::evaluate(const Frame& frame) const {
  Dict dict;
  for (const auto& [key, item] : entries) {
    assign(dict, key->value(frame).as_string("the key of a dict"), item->value(frame));
  }
  return frame.budget.spend_on(Value::dict(std::move(dict)));
}

Value Attribute::evaluate(const Frame& frame) const {
  return look_up_attribute(object->value(frame), name);
}

Value Item::evaluate(const Frame& frame) const {
  return look_up_item(object->value(frame), key->value(frame));
}

Value Slice::evaluate(const Frame& frame) const {
  const Value whole = object->value(frame);
  if (!whole.is_string() && !whole.is_list()) {
    refuse("a slice of {} is not defined", whole.describe());
  }
  const int64_t size = length(whole);
  const auto part = [&](const ExpressionPtr& expression) -> std::optional<int64_t> {
    const Value value = expression ? expression->value(frame) : Value::none();
    return value.is_none() ? std::nullopt : std::optional(value.as_integer("a slice"));
  };
  const int64_t by = part(step).value_or(1);
  if (by == 0) {
    refuse("the step of a slice is zero");
  }
  // Python's rules: negative indices count from the end, and out-of-range indices are clamped.
  const auto place = [&](std::optional<int64_t> at, int64_t fallback) {
    if (!at) {
      return fallback;
    }
    return std::clamp<int64_t>(*at < 0 ? *at + size : *at, by > 0 ? 0 : -1, by > 0 ? size : size - 1);
  };
  const int64_t begin = place(part(start), by > 0 ? 0 : size - 1);
  const int64_t end = place(part(stop), by > 0 ? size : -1);
  if (whole.is_string() && by == 1) {
    const auto count = static_cast<size_t>(std::max<int64_t>(end - begin, 0));
    return Value(middle(*whole.get<std::string>(), static_cast<size_t>(begin), count));
  }
  const List all = whole.elements("a slice");
  List chosen;
  std::string text;
  for (int64_t i = begin; by > 0 ? i < end : i > end; i += std::clamp<int64_t>(by, -size - 1, size + 1)) {
    if (whole.is_string()) {
      text += *all[static_cast<size_t>(i)].get<std::string>();
    } else {
      chosen.push_back(all[static_cast<size_t>(i)]);
    }
  }
  return frame.budget.spend_on(whole.is_string() ? Value(std::move(text)) : Value::list(std::move(chosen)));
}

Arguments ArgumentList::values(const Frame& frame) const {
  Arguments arguments;
  for (const auto& expression : positional) {
    arguments.positional.push_back(expression->value(frame));
  }
  for (const auto& [name, expression] : named) {
    assign(arguments.named, name, expression->value(frame));
    frame.budget.spend_on_input(arguments.named.back().second);
  }
  for (const Value& argument : arguments.positional) {
    frame.budget.spend_on_input(argument);
  }
  return arguments;
}

Value Call::evaluate(const Frame& frame) const {
  const Value called = function->value(frame);
  const auto* target = called.get<Value::FunctionPtr>();
  if (target == nullptr) {
    refuse("{} cannot be called", called.describe());
  }
  return frame.budget.spend_on((**target)(arguments.values(frame)));
}

Value FilterCall::evaluate(const Frame& frame) const {
  const Value value = input->value(frame);
  frame.budget.spend_on_input(value);
  return frame.budget.spend_on(filter(value, arguments.values(frame)));
}

Value TestCall::evaluate(const Frame& frame) const {
  const Value value = input->value(frame);
  const Arguments others = arguments.values(frame);
  if (!others.positional.empty() || !others.named.empty()) {
    frame.budget.spend_on_input(value);
  }
  return Value(test(value, others));
}

Value Binary::evaluate(const Frame& frame) const {
  const Value a = left->value(frame);
  const Value b = right->value(frame);
  if (op == Operator::concatenate) {
    frame.budget.spend(a.own_bytes() + b.own_bytes());
    std::string text = a.text();
    const std::string more = b.text();
    require_bytes(text.size() + more.size(), "'~'");
    return Value(std::move(text += more));
  }
  return frame.budget.spend_on(arithmetic(op, a, b));
}

Value Sign::evaluate(const Frame& frame) const {
  const Value value = operand->value(frame);
  if (!value.is_number()) {
    refuse("a sign before {} is not defined", value.describe());
  }
  if (value.is_float()) {
    return Value(negative ? -*value.get<double>() : *value.get<double>());
  }
  return integers(negative ? Operator::subtract : Operator::add, 0, value.as_integer("a sign"));
}

Value Comparison::evaluate(const Frame& frame) const {
  Value left = first->value(frame);
  for (const auto& [op, operand] : rest) {
    Value right = operand->value(frame);
    frame.budget.spend_on_input(left);
    frame.budget.spend_on_input(right);
    if (!compare(op, left, right)) {
      return Value(false);
    }
    left = std::move(right);
  }
  return Value(true);
}

Value Logical::evaluate(const Frame& frame) const {
  Value value = left->value(frame);
  return value.truth() == is_and ? right->value(frame) : value;
}

Value Not::evaluate(const Frame& frame) const {
  return Value(!operand->value(frame).truth());
}

Value Conditional::evaluate(const Frame& frame) const {
  if (condition->value(frame).truth()) {
    return then->value(frame);
  }
  return otherwise ? otherwise->value(frame) : Value::undefined("the else of an inline if");
}

}  // namespace lehr::data::jinja

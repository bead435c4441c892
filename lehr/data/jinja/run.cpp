// Execution of statements.
#include <algorithm>

#include "lehr/data/jinja/nodes.h"

namespace lehr::data::jinja {
namespace {

constexpr int kMaxMacroDepth = 50;  // nested macro calls; each uses stack space

/// Returns the output of `body` as a string.
std::string captured(const Body& body, const std::shared_ptr<Scope>& scope, Budget& budget) {
  std::string text;
  Frame frame{scope, text, nullptr, budget};
  run(body, frame);
  return text;
}

/// Returns the variable `loop` of an iteration.
Value loop_variable(const List& items, size_t i) {
  const auto index = static_cast<int64_t>(i);
  const auto size = static_cast<int64_t>(items.size());
  Dict loop{
      {"index", Value(index + 1)},
      {"index0", Value(index)},
      {"revindex", Value(size - index)},
      {"revindex0", Value(size - index - 1)},
      {"first", Value(i == 0)},
      {"last", Value(i + 1 == items.size())},
      {"length", Value(size)},
      {"previtem", i > 0 ? items[i - 1] : Value::undefined("loop.previtem")},
      {"nextitem", i + 1 < items.size() ? items[i + 1] : Value::undefined("loop.nextitem")}};
  loop.emplace_back("cycle", Value::function([i](const Arguments& arguments) {
                      if (arguments.positional.empty()) {
                        refuse("loop.cycle: expected something to choose from");
                      }
                      return arguments.positional[i % arguments.positional.size()];
                    }));
  return Value::dict(std::move(loop));
}

}  // namespace

Flow run(const Body& body, Frame& frame) {
  const Budget::Level level(frame.budget);
  for (const auto& statement : body) {
    frame.budget.spend(Budget::kEvaluation);
    if (const Flow flow = statement->run(frame); flow != Flow::next) {
      return flow;
    }
  }
  return Flow::next;
}

Flow Text::run(Frame& frame) const {
  frame.budget.spend(text.size());
  frame.out += text;
  return Flow::next;
}

Flow Output::run(Frame& frame) const {
  try {
    const Value value = expression->value(frame);
    if (!value.is_string()) {
      frame.budget.spend(value.tree_bytes());
    }
    frame.out += value.text();
  } catch (const Problem& problem) {
    throw problem.line() > 0 ? problem : Problem(problem.what(), expression->line());
  }
  return Flow::next;
}

Flow If::run(Frame& frame) const {
  for (const auto& [condition, body] : branches) {
    if (condition->value(frame).truth()) {
      return jinja::run(body, frame);
    }
  }
  return jinja::run(otherwise, frame);
}

void Target::assign(Value value, Scope& scope, const Frame& frame) const {
  if (!entry.empty()) {
    const Value object = Name(line, names.front()).value(frame);
    const auto* target = object.get<Value::NamespacePtr>();
    if (target == nullptr) {
      throw Problem(
          fmt::format("only the entries of a namespace can be set; '{}' is {}", names.front(), object.describe()),
          line);
    }
    if (value.get<Value::NamespacePtr>() != nullptr) {  // it could contain itself, and would never be freed
      throw Problem("a namespace cannot be in a list, a dict or another namespace", line);
    }
    jinja::assign((*target)->entries, entry, std::move(value));
    return;
  }
  if (names.size() == 1) {
    jinja::assign(scope.names, names.front(), std::move(value));
    return;
  }
  const List parts = value.is_number() || value.is_none() ? List{} : value.elements("unpacking");
  if (parts.size() != names.size()) {
    throw Problem(
        fmt::format("{} cannot be unpacked into {} names ({} parts)", value.describe(), names.size(), parts.size()),
        line);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    jinja::assign(scope.names, names[i], parts[i]);
  }
}

Flow For::run(Frame& frame) const {
  const Value whole = sequence->value(frame);
  List items;
  try {
    items = whole.elements("for");
  } catch (const Problem& problem) {
    throw Problem(problem.what(), sequence->line());
  }
  frame.budget.spend(whole.own_bytes());
  const auto inner = [&](const Value& item) {
    frame.budget.spend(Budget::kIteration + 3 * item.copied_bytes());  // also in loop.previtem and loop.nextitem
    auto scope = std::make_shared<Scope>(Scope{frame.scope, {}});
    target.assign(item, *scope, frame);
    return scope;
  };
  if (condition) {
    std::erase_if(items, [&](const Value& item) {
      return !condition->value(Frame{inner(item), frame.out, nullptr, frame.budget}).truth();
    });
  }
  for (size_t i = 0; i < items.size(); ++i) {
    Frame iteration{inner(items[i]), frame.out, frame.generated, frame.budget};
    assign(iteration.scope->names, "loop", loop_variable(items, i));
    if (jinja::run(body, iteration) == Flow::break_loop) {
      break;
    }
  }
  return items.empty() ? jinja::run(otherwise, frame) : Flow::next;
}

Flow Set::run(Frame& frame) const {
  auto inner = frame.scope;
  if (captures) {
    inner = std::make_shared<Scope>(Scope{frame.scope, {}});
    assign(inner->names, kCaptured, Value(captured(body, inner, frame.budget)));
  }
  Value value = expression->value(Frame{inner, frame.out, nullptr, frame.budget});
  target.assign(std::move(value), *frame.scope, frame);
  return Flow::next;
}

Flow Macro::run(Frame& frame) const {
  // The scope owns the function, so the function must not own the scope.
  const std::weak_ptr<Scope> defined_in = frame.scope;
  Budget& budget = frame.budget;
  assign(frame.scope->names, name, Value::function([this, defined_in, &budget](const Arguments& arguments) {
           const auto scope = defined_in.lock();
           if (scope == nullptr) {
             refuse("the macro '{}' was defined in a block that has ended", name);
           }
           return call(arguments, scope, budget);
         }));
  return Flow::next;
}

Value Macro::call(const Arguments& arguments, std::shared_ptr<Scope> scope, Budget& budget) const {
  struct Depth {
    int& depth;
    ~Depth() { --depth; }
  } const guard{++budget.macros};
  budget.spend(Budget::kIteration);
  if (budget.macros > kMaxMacroDepth) {
    refuse("the macro '{}' calls macros more than {} deep", name, kMaxMacroDepth);
  }
  std::vector<std::string> names;
  for (const auto& [parameter, fallback] : parameters) {
    names.push_back(parameter);
  }
  const List given = bound(arguments, names, name);
  const auto inner = std::make_shared<Scope>(Scope{std::move(scope), {}});
  for (size_t i = 0; i < names.size(); ++i) {
    Value value = given[i];
    if (value.is_undefined() && parameters[i].second != nullptr) {
      std::string unused;
      value = parameters[i].second->value(Frame{inner, unused, nullptr, budget});
    }
    assign(inner->names, names[i], std::move(value));
  }
  return Value(captured(body, inner, budget));
}

Flow Generation::run(Frame& frame) const {
  if (frame.generated == nullptr) {
    throw Problem("'generation' inside a macro or a set block is not supported", line);
  }
  const size_t begin = frame.out.size();
  const auto inner = std::make_shared<Scope>(Scope{frame.scope, {}});
  Frame inside{inner, frame.out, nullptr, frame.budget};
  const Flow flow = jinja::run(body, inside);
  frame.generated->emplace_back(begin, frame.out.size());
  return flow;
}

}  // namespace lehr::data::jinja

// Operands of expressions: literals, names, and their suffixes (attributes, calls, filters, tests).
#include <charconv>
#include <map>

#include "lehr/data/jinja/expression_parser.h"

namespace lehr::data::jinja {
namespace {

template <class T>
T number_of(const Token& token) {
  T value{};
  const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  if (error != std::errc()) {
    throw Problem(fmt::format("the number {} is too large", token.text), token.line);
  }
  return value;
}

}  // namespace

ExpressionPtr ExpressionParser::primary() {
  const Token token = peek();
  switch (token.kind) {
    case TokenKind::name: {
      next();
      static const std::map<std::string, Value> kConstants{
          {"true", Value(true)},
          {"True", Value(true)},
          {"false", Value(false)},
          {"False", Value(false)},
          {"none", Value::none()},
          {"None", Value::none()}};
      const auto constant = kConstants.find(token.text);
      if (constant != kConstants.end()) {
        return std::make_unique<Literal>(token.line, constant->second);
      }
      return std::make_unique<Name>(token.line, token.text);
    }
    case TokenKind::integer:
      return std::make_unique<Literal>(token.line, Value(number_of<int64_t>(next())));
    case TokenKind::number:
      return std::make_unique<Literal>(token.line, Value(number_of<double>(next())));
    case TokenKind::string:
      return string_literal();
    default:
      break;
  }
  if (skip_symbol("(")) {
    if (skip_symbol(")")) {
      auto empty = make_node<ListLiteral>(token);
      empty->is_tuple = true;
      return empty;
    }
    ExpressionPtr inside = tuple();
    expect_symbol(")");
    return inside;
  }
  if (is_symbol("[")) {
    return list_literal();
  }
  if (is_symbol("{")) {
    return dict_literal();
  }
  unexpected("a value");
}

ExpressionPtr ExpressionParser::string_literal() {
  const Token at = peek();
  std::string text;
  while (peek().kind == TokenKind::string) {  // adjacent strings are concatenated, as in Python
    text += next().text;
  }
  return std::make_unique<Literal>(at.line, Value(std::move(text)));
}

ExpressionPtr ExpressionParser::list_literal() {
  auto node = make_node<ListLiteral>(next());
  while (!skip_symbol("]")) {
    if (!node->items.empty()) {
      expect_symbol(",");
      if (skip_symbol("]")) {
        break;
      }
    }
    node->items.push_back(expression());
  }
  return node;
}

ExpressionPtr ExpressionParser::dict_literal() {
  auto node = make_node<DictLiteral>(next());
  while (!skip_symbol("}")) {
    if (!node->entries.empty()) {
      expect_symbol(",");
      if (skip_symbol("}")) {
        break;
      }
    }
    ExpressionPtr key = expression();
    expect_symbol(":");
    node->entries.emplace_back(std::move(key), expression());
  }
  return node;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr object) {
  for (;;) {
    if (is_symbol(".")) {
      const Token at = next();
      if (peek().kind == TokenKind::integer) {
        auto node = make_node<Item>(at);
        node->object = std::move(object);
        node->key = std::make_unique<Literal>(at.line, Value(number_of<int64_t>(next())));
        object = std::move(node);
      } else {
        auto node = make_node<Attribute>(at);
        node->object = std::move(object);
        node->name = expect_name("a name after the dot");
        object = std::move(node);
      }
    } else if (is_symbol("[")) {
      object = subscript(std::move(object));
    } else if (is_symbol("(")) {
      auto node = make_node<Call>(peek());
      node->function = std::move(object);
      node->arguments = arguments();
      object = std::move(node);
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const Token at = next();
  ExpressionPtr parts[3];
  size_t colons = 0;
  while (!is_symbol("]")) {
    if (skip_symbol(":")) {
      if (++colons > 2) {
        throw Problem("a slice has at most three parts", at.line);
      }
    } else if (parts[colons] != nullptr) {
      unexpected("']'");
    } else {
      parts[colons] = expression();
    }
  }
  expect_symbol("]");
  if (colons == 0) {
    if (parts[0] == nullptr) {
      throw Problem("expected an index between the brackets", at.line);
    }
    auto node = make_node<Item>(at);
    node->object = std::move(object);
    node->key = std::move(parts[0]);
    return node;
  }
  auto node = make_node<Slice>(at);
  node->object = std::move(object);
  node->start = std::move(parts[0]);
  node->stop = std::move(parts[1]);
  node->step = std::move(parts[2]);
  return node;
}

ArgumentList ExpressionParser::arguments() {
  ArgumentList list;
  expect_symbol("(");
  for (bool first = true; !skip_symbol(")"); first = false) {
    if (!first) {
      expect_symbol(",");
      if (skip_symbol(")")) {
        break;
      }
    }
    if (is_symbol("*") || is_symbol("**")) {
      throw Problem(fmt::format("'{}' before an argument is not supported", peek().text), peek().line);
    }
    if (peek().kind == TokenKind::name && peek(1).kind == TokenKind::symbol && peek(1).text == "=") {
      std::string name = next().text;
      next();
      list.named.emplace_back(std::move(name), expression());
    } else if (list.named.empty()) {
      list.positional.push_back(expression());
    } else {
      unexpected("a named argument: positional ones come first");
    }
  }
  return list;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr input) {
  while (is_symbol("|")) {
    auto node = make_node<FilterCall>(next());
    const std::string name = expect_name("a filter's name");
    node->filter = find_filter(name);
    if (node->filter == nullptr) {
      throw Problem(fmt::format("the filter '{}' is not supported", name), node->line());
    }
    node->input = std::move(input);
    if (is_symbol("(")) {
      node->arguments = arguments();
    }
    input = std::move(node);
  }
  return input;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  auto node = make_node<TestCall>(next());
  const bool negated = skip_name("not");
  const std::string name = expect_name("a test's name");
  node->test = find_test(name);
  if (node->test == nullptr) {
    throw Problem(fmt::format("the test '{}' is not supported", name), node->line());
  }
  node->input = std::move(input);
  const TokenKind kind = peek().kind;
  if (is_symbol("(")) {
    node->arguments = arguments();
  } else if (
      kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::number || is_symbol("[") ||
      is_symbol("{") ||
      (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is") &&
       !is_name("if") && !is_name("not") && !is_name("in"))) {
    node->arguments.positional.push_back(postfix(primary()));
  }
  if (!negated) {
    return node;
  }
  auto opposite = std::make_unique<Not>(node->line());
  opposite->operand = std::move(node);
  return opposite;
}

}  // namespace lehr::data::jinja

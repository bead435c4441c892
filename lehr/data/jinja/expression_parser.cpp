#include "lehr/data/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace lehr::data::jinja {
namespace {

constexpr int kMaxDepth = 200;  // nested brackets; more would be an attack on the stack

template <class Node>
std::unique_ptr<Node> make(const Token& at) {
  return std::make_unique<Node>(at.line);
}

template <class T>
T number_of(const Token& token) {
  T value{};
  const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  if (error != std::errc()) {
    throw Problem(fmt::format("the number {} is too large", token.text), token.line);
  }
  return value;
}

std::unique_ptr<Binary> binary(const Token& at, Operator op, ExpressionPtr left, ExpressionPtr right) {
  auto node = make<Binary>(at);
  node->op = op;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

}  // namespace

bool ExpressionParser::skip_symbol(std::string_view text) {
  const bool found = is_symbol(text);
  position_ += found ? 1 : 0;
  return found;
}

bool ExpressionParser::skip_name(std::string_view text) {
  const bool found = is_name(text);
  position_ += found ? 1 : 0;
  return found;
}

void ExpressionParser::unexpected(std::string_view wanted) const {
  throw Problem(fmt::format("expected {}, found '{}'", wanted, peek().text), peek().line);
}

void ExpressionParser::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) {
    unexpected(fmt::format("'{}'", text));
  }
}

std::string ExpressionParser::expect_name(std::string_view what) {
  if (peek().kind != TokenKind::name) {
    unexpected(what);
  }
  return next().text;
}

ExpressionPtr ExpressionParser::tuple() {
  const Token at = peek();
  ExpressionPtr first = expression();
  if (!is_symbol(",")) {
    return first;
  }
  auto node = make<ListLiteral>(at);
  node->is_tuple = true;
  node->items.push_back(std::move(first));
  while (skip_symbol(",")) {
    const TokenKind kind = peek().kind;
    if (kind == TokenKind::end_block || kind == TokenKind::end_output || is_symbol(")")) {
      break;
    }
    node->items.push_back(expression());
  }
  return node;
}

ExpressionPtr ExpressionParser::expression(bool conditional) {
  struct Depth {
    int& depth;
    ~Depth() { --depth; }
  } const guard{++depth_};
  if (depth_ > kMaxDepth) {
    throw Problem("expressions are nested too deeply", peek().line);
  }
  ExpressionPtr value = either();
  while (conditional && is_name("if")) {
    auto node = make<Conditional>(next());
    node->then = std::move(value);
    node->condition = either();
    if (skip_name("else")) {
      node->otherwise = expression();
    }
    value = std::move(node);
  }
  return value;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr left = both();
  while (is_name("or")) {
    auto node = make<Logical>(next());
    node->left = std::move(left);
    node->right = both();
    left = std::move(node);
  }
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = negation();
  while (is_name("and")) {
    auto node = make<Logical>(next());
    node->is_and = true;
    node->left = std::move(left);
    node->right = negation();
    left = std::move(node);
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  std::vector<Token> nots;
  while (is_name("not")) {
    nots.push_back(next());
  }
  ExpressionPtr value = comparison();
  for (const Token& at : nots) {
    auto node = make<Not>(at);
    node->operand = std::move(value);
    value = std::move(node);
  }
  return value;
}

ExpressionPtr ExpressionParser::comparison() {
  const Token at = peek();
  ExpressionPtr first = sum();
  auto node = make<Comparison>(at);
  for (;;) {
    std::string op;
    for (const char* symbol : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_symbol(symbol)) {
        op = symbol;
      }
    }
    if (is_name("in")) {
      op = "in";
    } else if (is_name("not") && peek(1).kind == TokenKind::name && peek(1).text == "in") {
      next();
      op = "not in";
    }
    if (op.empty()) {
      break;
    }
    next();
    node->rest.emplace_back(op, sum());
  }
  if (node->rest.empty()) {
    return first;
  }
  node->first = std::move(first);
  return node;
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (is_symbol("+") || is_symbol("-")) {
    const Token at = next();
    left = binary(at, at.text == "+" ? Operator::add : Operator::subtract, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr left = product();
  while (is_symbol("~")) {
    const Token at = next();
    left = binary(at, Operator::concatenate, std::move(left), product());
  }
  return left;
}

ExpressionPtr ExpressionParser::product() {
  static const std::map<std::string, Operator> kOperators{
      {"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}};
  ExpressionPtr left = power();
  while (peek().kind == TokenKind::symbol && kOperators.count(peek().text) != 0) {
    const Token at = next();
    left = binary(at, kOperators.at(at.text), std::move(left), power());
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary();
  while (is_symbol("**")) {
    const Token at = next();
    left = binary(at, Operator::power, std::move(left), unary());
  }
  return left;
}

ExpressionPtr ExpressionParser::unary() {
  std::vector<Token> signs;
  while (is_symbol("-") || is_symbol("+")) {
    signs.push_back(next());
  }
  ExpressionPtr value = signs.empty() ? primary() : postfix(primary());
  for (auto at = signs.rbegin(); at != signs.rend(); ++at) {
    auto node = make<Sign>(*at);
    node->negative = at->text == "-";
    node->operand = std::move(value);
    value = std::move(node);
  }
  value = postfix(std::move(value));
  while (is_symbol("|") || is_name("is")) {
    value = is_symbol("|") ? filters(std::move(value)) : test(std::move(value));
    value = postfix(std::move(value));
  }
  return value;
}

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
      auto empty = make<ListLiteral>(token);
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
  while (peek().kind == TokenKind::string) {  // neighbours join, as in Python
    text += next().text;
  }
  return std::make_unique<Literal>(at.line, Value(std::move(text)));
}

ExpressionPtr ExpressionParser::list_literal() {
  auto node = make<ListLiteral>(next());
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
  auto node = make<DictLiteral>(next());
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
        auto node = make<Item>(at);
        node->object = std::move(object);
        node->key = std::make_unique<Literal>(at.line, Value(number_of<int64_t>(next())));
        object = std::move(node);
      } else {
        auto node = make<Attribute>(at);
        node->object = std::move(object);
        node->name = expect_name("a name behind the dot");
        object = std::move(node);
      }
    } else if (is_symbol("[")) {
      object = subscript(std::move(object));
    } else if (is_symbol("(")) {
      auto node = make<Call>(peek());
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
        throw Problem("a slice has three parts at most", at.line);
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
    auto node = make<Item>(at);
    node->object = std::move(object);
    node->key = std::move(parts[0]);
    return node;
  }
  auto node = make<Slice>(at);
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
      unexpected("a named argument: those without a name come first");
    }
  }
  return list;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr input) {
  while (is_symbol("|")) {
    auto node = make<FilterCall>(next());
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
  auto node = make<TestCall>(next());
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

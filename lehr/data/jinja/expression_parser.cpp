#include "lehr/data/jinja/expression_parser.h"

#include <algorithm>
#include <map>

namespace lehr::data::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;  // nested brackets; deeper recursion could overflow the stack

std::unique_ptr<Binary> binary(const Token& at, Operator op, ExpressionPtr left, ExpressionPtr right) {
  auto node = make_node<Binary>(at);
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
  auto node = make_node<ListLiteral>(at);
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
  if (depth_ > kMaxExpressionDepth) {
    throw Problem("expressions are nested too deeply", peek().line);
  }
  ExpressionPtr value = either();
  while (conditional && is_name("if")) {
    auto node = make_node<Conditional>(next());
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
    auto node = make_node<Logical>(next());
    node->left = std::move(left);
    node->right = both();
    left = std::move(node);
  }
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = negation();
  while (is_name("and")) {
    auto node = make_node<Logical>(next());
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
    auto node = make_node<Not>(at);
    node->operand = std::move(value);
    value = std::move(node);
  }
  return value;
}

ExpressionPtr ExpressionParser::comparison() {
  const Token at = peek();
  ExpressionPtr first = sum();
  auto node = make_node<Comparison>(at);
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
    auto node = make_node<Sign>(*at);
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

}  // namespace lehr::data::jinja

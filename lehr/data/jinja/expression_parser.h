// Parser of the expressions inside tags.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lehr/data/jinja/lexer.h"
#include "lehr/data/jinja/nodes.h"

namespace lehr::data::jinja {

/// Creates a node with the line of `at`.
template <class Node>
std::unique_ptr<Node> make_node(const Token& at) {
  return std::make_unique<Node>(at.line);
}

/// A cursor over tokens, and Jinja's grammar of expressions: one function per precedence level, lowest first.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(position_ + ahead, tokens_.size() - 1)]; }
  Token next() { return position_ + 1 < tokens_.size() ? tokens_[position_++] : tokens_.back(); }
  bool is_symbol(std::string_view text) const { return peek().kind == TokenKind::symbol && peek().text == text; }
  bool is_name(std::string_view text) const { return peek().kind == TokenKind::name && peek().text == text; }
  bool skip_symbol(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_symbol(std::string_view text);
  std::string expect_name(std::string_view what);
  [[noreturn]] void unexpected(std::string_view wanted) const;

  /// Parses one expression, or several separated by commas, which form a tuple.
  ExpressionPtr tuple();
  /// If `conditional` is false, a following `if` is not consumed (as after the sequence of a `for`).
  ExpressionPtr expression(bool conditional = true);
  /// Parses any number of `| name(arguments)`.
  ExpressionPtr filters(ExpressionPtr input);
  ArgumentList arguments();

 private:
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary();
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr object);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr test(ExpressionPtr input);
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  ExpressionPtr string_literal();

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace lehr::data::jinja

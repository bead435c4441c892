#include "lehr/data/jinja/parser.h"

#include <algorithm>
#include <set>

#include "lehr/data/jinja/expression_parser.h"

namespace lehr::data::jinja {
namespace {

constexpr int kMaxBlockDepth = 100;  // nested blocks

/// Parses Jinja's statements, with the cursor of the expression parser.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : cursor_(std::move(tokens)) {}

  Parsed whole() {
    Body body = until({});
    return {std::move(body), marks_generation_};
  }

 private:
  /// Parses statements up to a block that begins with one of `ends` (the template's end if there are none), and
  /// consumes that name.
  Body until(const std::set<std::string>& ends) {
    if (++depth_ > kMaxBlockDepth) {
      throw Problem("blocks are nested too deeply", cursor_.peek().line);
    }
    Body body;
    for (;;) {
      const Token token = cursor_.peek();
      if (token.kind == TokenKind::end) {
        if (!ends.empty()) {
          const auto closing =
              std::find_if(ends.begin(), ends.end(), [](const auto& one) { return one.starts_with("end"); });
          throw Problem(
              fmt::format("the template ends, but '{}' is missing", closing == ends.end() ? *ends.begin() : *closing),
              token.line);
        }
        break;
      }
      cursor_.next();
      if (token.kind == TokenKind::text) {
        auto text = std::make_unique<Text>();
        text->text = token.text;
        body.push_back(std::move(text));
      } else if (token.kind == TokenKind::begin_output) {
        auto output = std::make_unique<Output>();
        output->expression = cursor_.tuple();
        expect(TokenKind::end_output);
        body.push_back(std::move(output));
      } else {
        const std::string name = cursor_.expect_name("the name of a block");
        if (ends.count(name) != 0) {
          ended_by_ = name;
          break;
        }
        body.push_back(block(name, token.line));
      }
    }
    --depth_;
    return body;
  }

  void expect(TokenKind kind) {
    if (cursor_.peek().kind != kind) {
      cursor_.unexpected(kind == TokenKind::end_block ? "'%}'" : "'}}'");
    }
    cursor_.next();
  }
  void end_block() { expect(TokenKind::end_block); }

  std::unique_ptr<const Statement> block(const std::string& name, int line) {
    if (name == "if") {
      return if_block();
    }
    if (name == "for") {
      return for_block();
    }
    if (name == "set") {
      return set_block();
    }
    if (name == "macro") {
      return macro_block();
    }
    if (name == "generation") {
      auto node = std::make_unique<Generation>();
      node->line = line;
      marks_generation_ = true;
      end_block();
      node->body = until({"endgeneration"});
      end_block();
      return node;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        throw Problem(fmt::format("'{}' is outside of a loop", name), line);
      }
      end_block();
      return std::make_unique<LeaveLoop>(name == "break" ? Flow::break_loop : Flow::continue_loop);
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      throw Problem(fmt::format("'{}' has no matching start", name), line);
    }
    throw Problem(fmt::format("the block '{}' is not supported", name), line);
  }

  std::unique_ptr<const Statement> if_block() {
    auto node = std::make_unique<If>();
    for (;;) {
      ExpressionPtr condition = cursor_.tuple();
      end_block();
      node->branches.emplace_back(std::move(condition), until({"elif", "else", "endif"}));
      if (ended_by_ != "elif") {
        break;
      }
    }
    if (ended_by_ == "else") {
      end_block();
      node->otherwise = until({"endif"});
    }
    end_block();
    return node;
  }

  Target target() {
    Target target;
    target.line = cursor_.peek().line;
    const bool bracket = cursor_.skip_symbol("(");
    do {
      target.names.push_back(cursor_.expect_name("a name to assign to"));
    } while (cursor_.skip_symbol(","));
    if (bracket) {
      cursor_.expect_symbol(")");
    }
    if (target.names.size() == 1 && cursor_.skip_symbol(".")) {
      target.entry = cursor_.expect_name("the name of a namespace's entry");
    }
    return target;
  }

  std::unique_ptr<const Statement> for_block() {
    auto node = std::make_unique<For>();
    node->target = target();
    if (!cursor_.skip_name("in")) {
      cursor_.unexpected("'in'");
    }
    node->sequence = cursor_.expression(/*conditional=*/false);
    if (cursor_.skip_name("if")) {
      node->condition = cursor_.expression();
    }
    if (cursor_.is_name("recursive")) {
      throw Problem("'recursive' loops are not supported", cursor_.peek().line);
    }
    end_block();
    ++loops_;
    node->body = until({"else", "endfor"});
    --loops_;
    if (ended_by_ == "else") {
      end_block();
      node->otherwise = until({"endfor"});
    }
    end_block();
    return node;
  }

  std::unique_ptr<const Statement> set_block() {
    auto node = std::make_unique<Set>();
    node->target = target();
    if (cursor_.skip_symbol("=")) {
      node->expression = cursor_.tuple();
      end_block();
      return node;
    }
    node->captures = true;
    node->expression = cursor_.filters(std::make_unique<Name>(node->target.line, Set::kCaptured));
    end_block();
    const int loops = std::exchange(loops_, 0);
    node->body = until({"endset"});
    loops_ = loops;
    end_block();
    return node;
  }

  std::unique_ptr<const Statement> macro_block() {
    auto node = std::make_unique<Macro>();
    node->name = cursor_.expect_name("the macro's name");
    cursor_.expect_symbol("(");
    while (!cursor_.skip_symbol(")")) {
      if (!node->parameters.empty()) {
        cursor_.expect_symbol(",");
      }
      std::string name = cursor_.expect_name("a parameter's name");
      ExpressionPtr fallback = cursor_.skip_symbol("=") ? cursor_.expression() : nullptr;
      node->parameters.emplace_back(std::move(name), std::move(fallback));
    }
    end_block();
    const int loops = std::exchange(loops_, 0);
    node->body = until({"endmacro"});
    loops_ = loops;
    end_block();
    return node;
  }

  ExpressionParser cursor_;
  std::string ended_by_;
  bool marks_generation_ = false;
  int loops_ = 0;
  int depth_ = 0;
};

}  // namespace

Parsed parse(std::string_view source) {
  return Parser(tokenize(source)).whole();
}

}  // namespace lehr::data::jinja

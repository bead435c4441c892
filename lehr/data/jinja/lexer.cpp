#include "lehr/data/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "lehr/data/jinja/text.h"
#include "lehr/data/jinja/value.h"
#include "lehr/data/unicode.h"

namespace lehr::data::jinja {
namespace {

constexpr size_t kMaxTokensOfATag = 3000;  // each may add a level to the tree, and so to the stack

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Normalizes newlines and drops a final one, as Jinja does.
std::string normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) {
      size_t tag = source_.find('{', position_);
      while (tag != std::string::npos && std::string_view("{%#").find(at(tag + 1)) == std::string_view::npos) {
        tag = source_.find('{', tag + 1);
      }
      read_text(tag);
      if (tag == std::string::npos) {
        break;
      }
      read_tag();
    }
    add(TokenKind::end, "end of the template");
    return std::move(tokens_);
  }

 private:
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\n'; }
  std::string_view rest() const { return std::string_view(source_).substr(position_); }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(size_t count) {
    const auto begin = source_.begin() + static_cast<std::ptrdiff_t>(position_);
    line_ += static_cast<int>(std::count(begin, begin + static_cast<std::ptrdiff_t>(count), '\n'));
    position_ += count;
  }

  [[noreturn]] void stop(const std::string& message) const { throw Problem(message, line_); }

  /// Adds the text before the tag at `tag`, without the white space that the tag removes.
  void read_text(size_t tag) {
    const size_t end = std::min(tag, source_.size());
    std::string_view text = std::string_view(source_).substr(position_, end - position_);
    const bool starts_line = position_ == 0 || source_[position_ - 1] == '\n';
    if (tag != std::string::npos) {
      const char sign = at(tag + 2);
      if (sign == '-') {
        text = strip_right(text);
      } else if (sign != '+' && at(tag + 1) != '{') {
        const size_t line = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
        if ((line > 0 || starts_line) && strip_left(text.substr(line)).empty()) {
          text = text.substr(0, line);
        }
      }
    }
    if (!text.empty()) {
      add(TokenKind::text, std::string(text));
    }
    advance(end - position_);
  }

  void read_tag() {
    const char kind = at(position_ + 1);
    const size_t signed_by = std::string_view("+-").find(at(position_ + 2)) == std::string_view::npos ? 0 : 1;
    if (kind == '#') {
      const size_t end = source_.find("#}", position_ + 2);
      if (end == std::string::npos) {
        stop("the comment {# does not end");
      }
      advance(end - position_);
      leave(source_[position_ - 1], 2, /*trims=*/true);
      return;
    }
    const bool block = kind == '%';
    add(block ? TokenKind::begin_block : TokenKind::begin_output, block ? "{%" : "{{");
    const int begin_line = line_;
    advance(2 + signed_by);
    const std::string close = block ? "%}" : "}}";
    const size_t first = tokens_.size();
    for (brackets_.clear();;) {
      if (tokens_.size() - first > kMaxTokensOfATag) {
        throw Problem("the tag is too long", begin_line);
      }
      advance(leading_space(rest()));
      if (position_ >= source_.size()) {
        throw Problem(block ? "the block {% does not end" : "the output {{ does not end", begin_line);
      }
      const size_t sign = at(position_) == '-' || (block && at(position_) == '+') ? 1 : 0;
      if (brackets_.empty() && rest().substr(sign).starts_with(close)) {
        add(block ? TokenKind::end_block : TokenKind::end_output, close);
        const char how = sign > 0 ? at(position_) : ' ';
        advance(sign);
        leave(how, 2, /*trims=*/block);
        return;
      }
      read_token();
    }
  }

  /// Skips the end of a tag, `size` characters, and the white space that it removes.
  void leave(char sign, size_t size, bool trims) {
    advance(size);
    if (sign == '-') {
      advance(leading_space(rest()));
    } else if (sign != '+' && trims && rest().starts_with('\n')) {
      advance(1);
    }
  }

  void read_token() {
    const char c = at(position_);
    if (is_name_start(c)) {
      size_t size = 1;
      while (is_name_start(at(position_ + size)) || is_digit(at(position_ + size))) {
        ++size;
      }
      take(TokenKind::name, size);
    } else if (is_digit(c)) {
      read_number();
    } else if (c == '\'' || c == '"') {
      read_string(c);
    } else {
      read_symbol();
    }
  }

  void take(TokenKind kind, size_t size) {
    add(kind, source_.substr(position_, size));
    advance(size);
  }

  void read_number() {
    size_t size = 0;
    const auto digits = [&] {
      while (is_digit(at(position_ + size)) || (at(position_ + size) == '_' && is_digit(at(position_ + size + 1)))) {
        ++size;
      }
    };
    digits();
    bool whole = true;
    const bool after_point = !tokens_.empty() && tokens_.back().text == ".";  // x.0.1 is two look-ups in x
    if (!after_point && at(position_ + size) == '.' && is_digit(at(position_ + size + 1))) {
      whole = false;
      ++size;
      digits();
    }
    if (at(position_ + size) == 'e' || at(position_ + size) == 'E') {
      const size_t sign = std::string_view("+-").find(at(position_ + size + 1)) == std::string_view::npos ? 0 : 1;
      if (is_digit(at(position_ + size + 1 + sign))) {
        whole = false;
        size += 1 + sign;
        digits();
      }
    }
    if (is_name_start(at(position_ + size))) {
      stop(
          "a number is followed by '" + std::string(1, at(position_ + size)) + "'; only decimal numbers are supported");
    }
    std::string text = source_.substr(position_, size);
    std::erase(text, '_');
    add(whole ? TokenKind::integer : TokenKind::number, std::move(text));
    advance(size);
  }

  void read_string(char quote) {
    const int begin_line = line_;
    std::string value;
    size_t i = position_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        value += source_[i];
      } else {
        i = read_escape(i + 1, value);
      }
    }
    if (i >= source_.size()) {
      throw Problem("a string does not end", begin_line);
    }
    add(TokenKind::string, std::move(value));
    advance(i + 1 - position_);
  }

  /// Appends the character of the escape at `i`, after its backslash; returns the position of its last character.
  size_t read_escape(size_t i, std::string& value) const {
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = at(i);
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      value += kMeanings[known];
      return i;
    }
    if (c == '\n') {
      return i;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (is_digit(c) || c == 'N') {
        stop(fmt::format("the escape \\{} is not supported", c));
      }
      value += {'\\', c};
      return i;
    }
    uint32_t code = 0;
    for (size_t k = 1; k <= digits; ++k) {
      const size_t digit = std::string_view("0123456789abcdefABCDEF").find(at(i + k));
      if (digit == std::string_view::npos) {
        stop(fmt::format("the escape \\{} needs {} hexadecimal digits", c, digits));
      }
      code = code * 16 + static_cast<uint32_t>(digit < 16 ? digit : digit - 6);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      stop(fmt::format("the escape \\{} is not a character", c));
    }
    append_utf8(value, code);
    return i + digits;
  }

  void read_symbol() {
    static constexpr std::array kLong{"==", "!=", "<=", ">=", "//", "**"};
    for (const char* symbol : kLong) {
      if (rest().starts_with(symbol)) {
        return take(TokenKind::symbol, 2);
      }
    }
    const char c = at(position_);
    if (std::string_view("+-*/%~[](){}<>=.:|,").find(c) == std::string_view::npos) {
      stop(fmt::format("'{}' is not allowed here", characters(rest().substr(0, 4)).front()));
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty() || brackets_.back() != c) {
        stop(
            brackets_.empty() ? fmt::format("'{}' closes nothing", c)
                              : fmt::format("expected '{}', found '{}'", brackets_.back(), c));
      }
      brackets_.pop_back();
    }
    take(TokenKind::symbol, 1);
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  std::string brackets_;  // closing brackets of those that are open in this tag
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalized(source)).run();
}

}  // namespace lehr::data::jinja

// A template cut into pieces: text, and the tokens inside its tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lehr::data::jinja {

enum class TokenKind {
  text,          ///< What is written as it is; white space that tags take away is gone.
  begin_block,   ///< {%
  end_block,     ///< %}
  begin_output,  ///< {{
  end_output,    ///< }}
  name,
  string,  ///< `text` is its value.
  integer,
  number,
  symbol,  ///< An operator or a bracket.
  end,     ///< After the last token, once.
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int line = 0;
};

/// Cuts a template as Jinja does with trim_blocks and lstrip_blocks, the way transformers sets it up: a line break
/// after a block goes, and so do blanks before a block that begins its line; `-` and `+` inside a tag overrule it.
/// Comments are left out. Throws Problem.
std::vector<Token> tokenize(std::string_view source);

}  // namespace lehr::data::jinja

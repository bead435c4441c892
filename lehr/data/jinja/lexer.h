// Lexer of templates: text, and the tokens inside tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lehr::data::jinja {

/// Kinds of tokens.
enum class TokenKind {
  text,          ///< Literal text, without the white space that adjacent tags remove.
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

/// A token and its line, from 1.
struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int line = 0;
};

/// Tokenizes a template like Jinja with trim_blocks and lstrip_blocks, the settings of transformers: a newline after a
/// block is removed, and so are blanks before a block that begins its line; `-` and `+` inside a tag override this.
/// Comments are dropped. Throws Problem.
std::vector<Token> tokenize(std::string_view source);

}  // namespace lehr::data::jinja

// Hand-written scanners for the pre-tokenizer patterns of GPT-2, Qwen2/Qwen3 and Llama 3.
//
// Each function below is one alternative of the pattern, tried in the pattern's order. The scanners are tested against
// the same oracle as the regular expression engine, and are about ten times as fast.
#include <array>

#include "lehr/data/pretokenize.h"
#include "lehr/data/unicode.h"

namespace lehr::data {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr auto kAsciiKinds = [] {
  std::array<CharKind, 128> kinds{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    kinds[static_cast<size_t>(c)] = letter                 ? CharKind::letter
                                    : c >= '0' && c <= '9' ? CharKind::number
                                    : space                ? CharKind::space
                                                           : CharKind::other;
  }
  return kinds;
}();

bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

/// Class and size of a character; size 0 at the end of the text.
struct Seen {
  CharKind kind;
  uint32_t size;
  bool is(CharKind wanted) const { return size != 0 && kind == wanted; }
};

/// The common part of the patterns. All positions are pointers into the text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : end_(text.data() + text.size()), table_(CodePoints::get()) {}

  const char* end() const { return end_; }

  Seen look(const char* at) const {
    if (at == end_) {
      return {CharKind::other, 0};
    }
    if (static_cast<uint8_t>(*at) < 0x80) {
      return {kAsciiKinds[static_cast<uint8_t>(*at)], 1};
    }
    const DecodedChar c = decode_utf8(at, end_);
    return {table_.kind(c.code), c.size};
  }

  /// Returns the end of the run of characters of one class that starts at `at`, at most `limit` of them.
  const char* run(CharKind kind, const char* at, size_t limit = SIZE_MAX) const {
    for (; limit != 0; --limit) {
      const Seen seen = look(at);
      if (!seen.is(kind)) {
        break;
      }
      at += seen.size;
    }
    return at;
  }

  const char* newlines(const char* at) const {
    while (at != end_ && is_newline(*at)) {
      ++at;
    }
    return at;
  }

  /// Matches 's|'t|'re|'ve|'m|'ll|'d at an apostrophe; returns `at` itself if none matches.
  const char* contraction(const char* at, bool any_case) const {
    const auto letter = [&](ptrdiff_t i) {
      const char c = i < end_ - at ? at[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char first = letter(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') {
      return at + 2;
    }
    const char second = letter(2);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) {
      return at + 3;
    }
    // U+017F, the long s, matches "s" if case is ignored.
    return any_case && first == '\xC5' && second == '\xBF' ? at + 3 : at;
  }

  /// Matches \s+(?!\S)|\s+ at a space: the whole run at the end of the text, else all of it except its last character.
  const char* spaces(const char* at) const {
    const char* last = at;
    const char* next = at;
    for (Seen seen = look(at); seen.is(CharKind::space); seen = look(next)) {
      last = next;
      next += seen.size;
    }
    return next == end_ || last == at ? next : last;
  }

 private:
  const char* end_;
  const CodePoints& table_;
};

// Calls `sink` with each word of the text; word_end(scanner, at) is the end of the one that begins at `at`.
template <class WordEnd>
void split_words(std::string_view text, const PieceSink& sink, const WordEnd& word_end) {
  const Scanner scanner(text);
  for (const char* at = text.data(); at != scanner.end();) {
    const char* const next = word_end(scanner, at);
    sink({at, static_cast<size_t>(next - at)});
    at = next;
  }
}

class Gpt2Splitter : public Splitter {
 public:
  void split(std::string_view text, const PieceSink& sink) const override {
    split_words(text, sink, [](const Scanner& scanner, const char* at) { return word_end(scanner, at); });
  }

 private:
  static const char* word_end(const Scanner& scanner, const char* at) {
    if (*at == '\'') {
      if (const char* next = scanner.contraction(at, /*any_case=*/false); next != at) {
        return next;
      }
    }
    const char* const body = *at == ' ' ? at + 1 : at;
    const Seen seen = scanner.look(body);
    if (seen.size != 0 && seen.kind != CharKind::space) {
      return scanner.run(seen.kind, body + seen.size);
    }
    return scanner.spaces(at);
  }
};

/// Qwen2 and Llama 3, which differ in the number of digits of a word.
class Cl100kSplitter : public Splitter {
 public:
  explicit Cl100kSplitter(size_t max_digits) : max_digits_(max_digits) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    split_words(text, sink, [this](const Scanner& scanner, const char* at) { return word_end(scanner, at); });
  }

 private:
  const char* word_end(const Scanner& scanner, const char* at) const {
    if (*at == '\'') {
      if (const char* next = scanner.contraction(at, /*any_case=*/true); next != at) {
        return next;
      }
    }
    const Seen first = scanner.look(at);
    // [^\r\n\p{L}\p{N}]?\p{L}+
    if (first.kind == CharKind::letter) {
      return scanner.run(CharKind::letter, at + first.size);
    }
    // \p{N} or \p{N}{1,3}
    if (first.kind == CharKind::number) {
      return scanner.run(CharKind::number, at + first.size, max_digits_ - 1);
    }
    const char* const rest = at + first.size;
    const Seen second = scanner.look(rest);
    if (second.is(CharKind::letter) && !is_newline(*at)) {
      return scanner.run(CharKind::letter, rest + second.size);
    }
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    if (first.kind == CharKind::other || (*at == ' ' && second.is(CharKind::other))) {
      return scanner.newlines(scanner.run(CharKind::other, rest));
    }
    // \s*[\r\n]+: up to the last newline of the run of spaces.
    const char* const spaces_end = scanner.run(CharKind::space, at);
    for (const char* back = spaces_end; back != at; --back) {
      if (is_newline(back[-1])) {
        return back;
      }
    }
    return scanner.spaces(at);
  }

  size_t max_digits_;
};

}  // namespace

std::unique_ptr<Splitter> make_scanner(const std::string& pattern) {
  if (pattern == kQwen2Pattern) {
    return std::make_unique<Cl100kSplitter>(1);
  }
  if (pattern == kLlama3Pattern) {
    return std::make_unique<Cl100kSplitter>(3);
  }
  if (pattern == kGpt2Pattern) {
    return std::make_unique<Gpt2Splitter>();
  }
  return nullptr;
}

}  // namespace lehr::data

// Pre-tokenizers: splitting of text into words before merges are applied.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace lehr::data {

/// A reference to a callable that takes one piece of text; valid only during the call it is passed to.
class PieceSink {
 public:
  template <class F>
  requires(!std::is_same_v<F, PieceSink>) PieceSink(const F& f)  // implicit, so that a lambda can be passed
      : object_(&f),
        call_([](const void* object, std::string_view piece) { (*static_cast<const F*>(object))(piece); }) {}
  void operator()(std::string_view piece) const { call_(object_, piece); }

 private:
  const void* object_;
  void (*call_)(const void*, std::string_view);
};

/// Splits text into pieces. Immutable: several threads may call `split` concurrently.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// Calls `sink` with each non-empty piece in order; a piece is valid only during its call. Takes linear time.
  virtual void split(std::string_view text, const PieceSink& sink) const = 0;
};

/// The treatment of matches of a Split pattern, as in the `tokenizers` package.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// Returns a splitter for a regular expression (or, with `literal`, a plain string) based on PCRE2 and its Unicode
/// tables. Constructs that PCRE2 interprets differently from Oniguruma are refused. `where` names file and field in
/// errors.
std::unique_ptr<Splitter> make_regex_splitter(
    const std::string& pattern, bool literal, SplitBehavior behavior, bool invert, const std::string& where);

/// Returns the hand-written scanner for `pattern` if it is one of common models (GPT-2; Qwen2 and Qwen3; Llama 3), else
/// null. It isolates each match; these patterns match all text, so nothing lies between matches.
std::unique_ptr<Splitter> make_scanner(const std::string& pattern);

/// The pattern of GPT-2, which ByteLevel uses with `use_regex`.
extern const char* const kGpt2Pattern;

/// Returns the splitter for a `pre_tokenizer` object of tokenizer.json, without the final mapping of bytes to
/// characters: Split, ByteLevel (which must be last), Digits, Sequence. `where` names file and field in errors.
std::unique_ptr<Splitter> make_pre_tokenizer(const nlohmann::json& node, const std::string& where);

}  // namespace lehr::data

// Pre-tokenizers: splitting of text into words before merges are applied.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lehr/data/bpe_vocabulary.h"

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

/// Where a text stands that is encoded as a part of a longer one.
enum class Place {
  start,              ///< At its start.
  after_added_token,  ///< After an added token.
  continued,          ///< After other text, so that nothing is prepended.
};

/// Replaces spaces by a character that is visible, and prepends one (Metaspace of the `tokenizers` package).
struct Metaspace {
  enum class Prepend { never, first, always };
  std::string replacement;
  Prepend prepend = Prepend::always;  ///< To a text that does not begin with one; first: only at the start.

  /// Returns the text with its spaces replaced, in `buffer`.
  std::string_view apply(std::string_view text, Place place, std::string& buffer) const;
};

/// Splitting of the text between added tokens into the words in which merges are applied.
class PreTokenizer {
 public:
  /// Reads `pre_tokenizer` of tokenizer.json, without the final mapping of bytes to characters: Split, Digits, a
  /// Sequence, and ByteLevel, which must be last with Spelling::bytes and missing with Spelling::characters, for which
  /// Metaspace and null are supported, too. `where` names file and field in errors.
  static PreTokenizer read(const nlohmann::json& node, Spelling spelling, const std::string& where);

  /// Splits also before each `space` that another character precedes. Changes no ids if no merge joins the two.
  void split_before(const std::string& space);

  /// Calls `sink` with each non-empty word in order. A word is valid only during its call.
  void split(std::string_view text, Place place, const PieceSink& sink) const;

  bool prepends() const { return metaspace_ && metaspace_->prepend != Metaspace::Prepend::never; }

 private:
  std::optional<Metaspace> metaspace_;
  std::vector<std::unique_ptr<Splitter>> steps_;  // each is applied to the pieces of the previous one
};

}  // namespace lehr::data

// The general pre-tokenizer: any regular expression, compiled to machine code by PCRE2.
#include <simdjson.h>

#include "lehr/base/error.h"
#include "lehr/base/pcre2.h"
#include "lehr/data/pretokenize.h"
#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

constexpr size_t kLongestPattern = 16'384;
constexpr size_t kJitStack = size_t{32} << 20;
// Steps of a match, and of all matches in a text of n bytes that needed more than that. Real patterns take a few dozen.
constexpr uint32_t kFirstSteps = 4096, kMostMatchSteps = 10'000'000;
constexpr uint64_t kStepsPerByte = 256;
constexpr uint32_t kHeapKiB = 32'768;

/// Returns whether `rest` begins with a call of a group, (?R), (?1), (?&name), (?P>name), or with a callout, (?C).
bool calls_itself(std::string_view rest) {
  if (!rest.starts_with("(?") || rest.size() < 3) {
    return false;
  }
  const auto is_digit = [&](size_t i) { return i < rest.size() && rest[i] >= '0' && rest[i] <= '9'; };
  return std::string_view("R&C").find(rest[2]) != std::string_view::npos || rest.starts_with("(?P>") || is_digit(2) ||
         ((rest[2] == '+' || rest[2] == '-') && is_digit(3));
}

/// Refuses constructs that PCRE2 accepts but interprets differently from Oniguruma, which `tokenizers` uses.
void refuse_other_dialect(const std::string& pattern, const std::string& where) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = std::string_view(pattern).substr(i);
    std::string_view bad;
    if (rest[0] == '\\') {
      const char escaped = rest.size() > 1 ? rest[1] : '\0';
      // Hexadecimal digits, \K, \R, \X and \G differ between the two engines.
      if (std::string_view("hHKRXG").find(escaped) != std::string_view::npos) {
        bad = rest.substr(0, 2);
      }
      ++i;
    } else if (in_class) {
      if (rest.starts_with("&&") || (rest[0] == '[' && !rest.starts_with("[:"))) {
        bad = rest.substr(0, 2);  // intersections and nested sets
      } else if (rest.starts_with("[:")) {
        i += rest.find(":]") == std::string_view::npos ? 1 : rest.find(":]") + 1;
      } else if (rest[0] == ']') {
        in_class = false;
      }
    } else if (rest[0] == '[') {
      in_class = true;
      i += rest.starts_with("[^]") ? 2 : rest.starts_with("[^") || rest.starts_with("[]") ? 1 : 0;
    } else if (calls_itself(rest)) {
      bad = rest.substr(0, 3);
    } else if (rest[0] == '^' || rest[0] == '$' || rest.starts_with("(?m") || rest.starts_with("(*")) {
      bad = rest.substr(0, rest[0] == '(' ? 3 : 1);
    }
    require(
        bad.empty(),
        "{}: the regular expression uses '{}' at character {}, which is not supported. Pattern: {}",
        where,
        bad,
        i,
        pattern);
  }
}

class RegexSplitter : public Splitter {
 public:
  RegexSplitter(const std::string& pattern, bool literal, SplitBehavior behavior, bool invert, const std::string& where)
      : behavior_(behavior), invert_(invert), where_(where) {
    if (!literal) {
      refuse_other_dialect(pattern, where);
    }
    require(
        pattern.size() <= kLongestPattern,
        "{}: the regular expression has {} bytes, at most {} are allowed",
        where,
        pattern.size(),
        kLongestPattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
    code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr));
    require(
        code_ != nullptr,
        "{}: the regular expression does not compile: {} at byte {}. Pattern: {}",
        where,
        pcre2_message(error),
        offset,
        pattern);
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without JIT support, pcre2_match interprets
  }

  void split(std::string_view text, const PieceSink& sink) const override {
    if (simdjson::validate_utf8(text.data(), text.size())) {
      split_valid(text, sink);
      return;
    }
    // PCRE2 requires valid UTF-8: each valid range is matched separately, and the bytes between are separate pieces.
    const char* const end = text.data() + text.size();
    const char* begin = text.data();
    for (const char* at = begin; at < end;) {
      const DecodedChar c = decode_utf8(at, end);
      if (c.code == kInvalidCode) {
        split_valid({begin, static_cast<size_t>(at - begin)}, sink);
        sink({at, c.size});
        begin = at + c.size;
      }
      at += c.size;
    }
    split_valid({begin, static_cast<size_t>(end - begin)}, sink);
  }

 private:
  struct Span {
    size_t begin = 0;
    size_t end = 0;
    bool matched = false;
  };

  /// Converts matched and unmatched ranges, in order, to pieces.
  class Emitter {
   public:
    Emitter(SplitBehavior behavior, std::string_view text, const PieceSink& sink)
        : behavior_(behavior), text_(text), sink_(sink) {}

    void add(Span span) {
      if (span.begin == span.end) {
        return;
      }
      bool joins = false;
      switch (behavior_) {
        case SplitBehavior::isolated:
          break;
        case SplitBehavior::removed:
          if (span.matched) {
            return;
          }
          break;
        case SplitBehavior::merged_with_previous:
          joins = span.matched && !last_matched_;
          break;
        case SplitBehavior::merged_with_next:
          joins = !span.matched && last_matched_;
          break;
        case SplitBehavior::contiguous:
          joins = span.matched == last_matched_;
          break;
      }
      last_matched_ = span.matched;
      if (joins && pending_.begin != pending_.end) {
        pending_.end = span.end;
        return;
      }
      flush();
      pending_ = span;
    }

    void flush() {
      if (pending_.begin != pending_.end) {
        sink_(text_.substr(pending_.begin, pending_.end - pending_.begin));
      }
      pending_ = {};
    }

   private:
    SplitBehavior behavior_;
    std::string_view text_;
    const PieceSink& sink_;
    Span pending_;
    bool last_matched_ = false;
  };

  void split_valid(std::string_view text, const PieceSink& sink) const {
    if (text.empty()) {
      return;
    }
    const Pcre2Ptr<pcre2_match_data> match(pcre2_match_data_create(1, nullptr));
    const Pcre2Ptr<pcre2_match_context> context(pcre2_match_context_create(nullptr));
    pcre2_set_heap_limit(context.get(), kHeapKiB);
    Pcre2Ptr<pcre2_jit_stack> stack;
    // A match starts with few steps, and gets more if it needs them. What was allowed beyond the first is counted, so
    // that the time for a text is linear.
    uint32_t steps = kFirstSteps;
    uint64_t spent = 0;
    const uint64_t most = kMostMatchSteps + kStepsPerByte * text.size();
    Emitter emitter(behavior_, text, sink);
    size_t covered = 0;  // everything before it has been emitted
    size_t from = 0;
    while (from < text.size()) {
      pcre2_set_match_limit(context.get(), steps);
      const int found = pcre2_match(
          code_.get(),
          reinterpret_cast<PCRE2_SPTR>(text.data()),
          text.size(),
          from,
          PCRE2_NO_UTF_CHECK,
          match.get(),
          context.get());
      if (found == PCRE2_ERROR_JIT_STACKLIMIT && !stack) {
        stack.reset(pcre2_jit_stack_create(64 << 10, kJitStack, nullptr));
        pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
        continue;
      }
      if (found == PCRE2_ERROR_MATCHLIMIT && spent + 4 * uint64_t{steps} <= most && steps <= kMostMatchSteps) {
        steps *= 4;
        spent += steps;
        continue;
      }
      steps = kFirstSteps;
      if (found == PCRE2_ERROR_NOMATCH) {
        break;
      }
      require(
          found >= 0,
          "{}: matching the regular expression failed at byte {} of a text of {} bytes: {}",
          where_,
          from,
          text.size(),
          pcre2_message(found));
      const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(match.get());
      const size_t begin = range[0];
      const size_t end = range[1];
      if (end > begin) {
        emitter.add({covered, begin, invert_});
        emitter.add({begin, end, !invert_});
        covered = from = end;
      } else {  // an empty match splits without a piece
        emitter.add({covered, begin, invert_});
        emitter.flush();
        covered = begin;
        from = begin < text.size() ? begin + decode_utf8(text.data() + begin, text.data() + text.size()).size : begin;
      }
    }
    emitter.add({covered, text.size(), invert_});
    emitter.flush();
  }

  Pcre2Ptr<pcre2_code> code_;
  SplitBehavior behavior_;
  bool invert_;
  std::string where_;
};

}  // namespace

std::unique_ptr<Splitter> make_regex_splitter(
    const std::string& pattern, bool literal, SplitBehavior behavior, bool invert, const std::string& where) {
  return std::make_unique<RegexSplitter>(pattern, literal, behavior, invert, where);
}

}  // namespace lehr::data

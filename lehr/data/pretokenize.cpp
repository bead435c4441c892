// Builds a splitter from the pre_tokenizer of tokenizer.json.
#include "lehr/data/pretokenize.h"

#include <vector>

#include "lehr/data/tokenizer_json.h"
#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

using nlohmann::json;

/// ByteLevel's add_prefix_space: prefixes every piece that does not start with a space.
class PrefixSpace : public Splitter {
 public:
  void split(std::string_view text, const PieceSink& sink) const override {
    if (text.empty() || text.front() == ' ') {
      sink(text);
      return;
    }
    std::string spaced;
    spaced.reserve(text.size() + 1);
    spaced += ' ';
    spaced += text;
    sink(spaced);
  }
};

/// Digits: separates runs of numbers, or single ones, from all other text.
class DigitSplitter : public Splitter {
 public:
  explicit DigitSplitter(bool individual) : individual_(individual) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    const CodePoints& table = CodePoints::get();
    const char* const end = text.data() + text.size();
    const char* begin = text.data();
    bool in_number = false;
    const auto cut = [&](const char* at) {
      if (at != begin) {
        sink({begin, static_cast<size_t>(at - begin)});
      }
      begin = at;
    };
    for (const char* at = begin; at < end;) {
      const DecodedChar c = decode_utf8(at, end);
      const bool number = table.kind(c.code) == CharKind::number;
      if (number != in_number || (number && individual_)) {
        cut(at);
      }
      in_number = number;
      at += c.size;
    }
    cut(end);
  }

 private:
  bool individual_;
};

/// Splits before each `space` that another character precedes: words with the spaces before them.
class WordSplitter : public Splitter {
 public:
  explicit WordSplitter(std::string space) : space_(std::move(space)) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    size_t begin = 0;
    for (size_t at = text.find(space_); at != std::string_view::npos; at = text.find(space_, at + space_.size())) {
      const bool after_space = at >= space_.size() && text.substr(at - space_.size(), space_.size()) == space_;
      if (at > begin && !after_space) {
        sink(text.substr(begin, at - begin));
        begin = at;
      }
    }
    sink(text.substr(begin));
  }

 private:
  std::string space_;
};

SplitBehavior read_behavior(const json& node, const std::string& where) {
  const auto name = json_at<std::string>(node, "behavior", where);
  static constexpr std::pair<const char*, SplitBehavior> kNames[] = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
  }
  fail(
      "{}.behavior: expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous, found \"{}\"",
      where,
      name);
}

std::unique_ptr<Splitter> read_split(const json& node, const std::string& where) {
  const auto pattern_node = json_at<json>(node, "pattern", where);
  const bool literal = pattern_node.is_object() && pattern_node.contains("String");
  const auto pattern = json_at<std::string>(pattern_node, literal ? "String" : "Regex", where + ".pattern");
  const SplitBehavior behavior = read_behavior(node, where);
  const bool invert = json_or(node, "invert", false, where);
  // The scanners' patterns match all text, so removing non-matches also isolates the matches.
  const bool isolates = behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && invert);
  if (!literal && isolates) {
    if (auto scanner = make_scanner(pattern)) {
      return scanner;
    }
  }
  return make_regex_splitter(pattern, literal, behavior, invert, where + ".pattern");
}

constexpr size_t kMostSteps = 64;  // each uses stack space

/// Converts one node to steps; `ended` is set once ByteLevel, which must be last, was read.
void read_steps(
    const json& node, const std::string& where, std::vector<std::unique_ptr<Splitter>>& steps, bool& ended) {
  const auto type = json_at<std::string>(node, "type", where);
  require(
      !ended, "{}: comes after ByteLevel, which must be the last step (a later step would see mapped bytes)", where);
  if (type == "Sequence") {
    const auto parts = json_list_at(node, "pretokenizers", where);
    for (size_t i = 0; i < parts.size(); ++i) {
      read_steps(parts[i], fmt::format("{}.pretokenizers[{}]", where, i), steps, ended);
    }
  } else if (steps.size() >= kMostSteps) {
    fail("{}: more than {} steps", where, kMostSteps);
  } else if (type == "Split") {
    steps.push_back(read_split(node, where));
  } else if (type == "Digits") {
    steps.push_back(std::make_unique<DigitSplitter>(json_or(node, "individual_digits", false, where)));
  } else if (type == "ByteLevel") {
    ended = true;
    if (json_or(node, "add_prefix_space", true, where)) {
      steps.push_back(std::make_unique<PrefixSpace>());
    }
    if (json_or(node, "use_regex", true, where)) {
      steps.push_back(make_scanner(kGpt2Pattern));
    }
  } else {
    fail(
        "{}.type: expected Sequence, Split, Digits or ByteLevel, or, with the decoder of a SentencePiece vocabulary, "
        "Metaspace alone, found \"{}\", which is not supported",
        where,
        type);
  }
}

Metaspace::Prepend read_prepend(const json& node, const std::string& where) {
  const auto scheme = json_or<std::string>(node, "prepend_scheme", "always", where);
  static constexpr std::pair<const char*, Metaspace::Prepend> kNames[] = {
      {"always", Metaspace::Prepend::always},
      {"first", Metaspace::Prepend::first},
      {"never", Metaspace::Prepend::never}};
  for (const auto& [name, prepend] : kNames) {
    if (scheme == name) {
      return json_or(node, "add_prefix_space", true, where) ? prepend : Metaspace::Prepend::never;
    }
  }
  fail("{}.prepend_scheme: expected always, first or never, found \"{}\"", where, scheme);
}

void split_from(
    const std::vector<std::unique_ptr<Splitter>>& steps, size_t step, std::string_view text, const PieceSink& sink) {
  if (step < steps.size()) {
    steps[step]->split(text, [&](std::string_view piece) { split_from(steps, step + 1, piece, sink); });
  } else if (!text.empty()) {
    sink(text);
  }
}

}  // namespace

std::string_view Metaspace::apply(std::string_view text, Place place, std::string& buffer) const {
  buffer.clear();
  const bool prepends =
      prepend == Prepend::always ? place != Place::continued : prepend == Prepend::first && place == Place::start;
  if (prepends && !text.starts_with(' ') && !text.starts_with(replacement)) {
    buffer = replacement;
  }
  for (const char c : text) {
    if (c == ' ') {
      buffer += replacement;
    } else {
      buffer += c;
    }
  }
  return buffer;
}

PreTokenizer PreTokenizer::read(const json& node, Spelling spelling, const std::string& where) {
  PreTokenizer result;
  const bool bytes = spelling == Spelling::bytes;
  require(!node.is_null() || !bytes, "{}: is missing; expected ByteLevel, as the decoder is, as the last step", where);
  if (node.is_null()) {
    return result;
  }
  if (!bytes && json_at<std::string>(node, "type", where) == "Metaspace") {
    const auto replacement = json_or<std::string>(node, "replacement", "\u2581", where);
    const DecodedChar first = decode_utf8(replacement.data(), replacement.data() + replacement.size());
    require(
        first.code != kInvalidCode && first.size == replacement.size(),
        "{}.replacement: expected one character, found \"{}\"",
        where,
        replacement);
    result.metaspace_ = Metaspace{.replacement = replacement, .prepend = read_prepend(node, where)};
    if (json_or(node, "split", true, where)) {
      result.steps_.push_back(
          make_regex_splitter(replacement, /*literal=*/true, SplitBehavior::merged_with_next, /*invert=*/false, where));
    }
    return result;
  }
  bool ended = false;
  read_steps(node, where, result.steps_, ended);
  require(ended || !bytes, "{}: contains no ByteLevel, as the decoder is", where);
  require(!ended || bytes, "{}: contains ByteLevel, but the decoder is that of a SentencePiece vocabulary", where);
  return result;
}

void PreTokenizer::split_before(const std::string& space) {
  steps_.push_back(std::make_unique<WordSplitter>(space));
}

void PreTokenizer::split(std::string_view text, Place place, const PieceSink& sink) const {
  if (metaspace_) {
    std::string buffer;
    split_from(steps_, 0, metaspace_->apply(text, place, buffer), sink);
  } else {
    split_from(steps_, 0, text, sink);
  }
}

}  // namespace lehr::data

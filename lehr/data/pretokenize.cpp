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

/// Applies splitters one after the other, each to the pieces of the previous one.
class SequenceSplitter : public Splitter {
 public:
  explicit SequenceSplitter(std::vector<std::unique_ptr<Splitter>> steps) : steps_(std::move(steps)) {}

  void split(std::string_view text, const PieceSink& sink) const override { split_from(0, text, sink); }

 private:
  void split_from(size_t step, std::string_view text, const PieceSink& sink) const {
    if (step == steps_.size()) {
      if (!text.empty()) {
        sink(text);
      }
      return;
    }
    steps_[step]->split(text, [&](std::string_view piece) { split_from(step + 1, piece, sink); });
  }

  std::vector<std::unique_ptr<Splitter>> steps_;
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
    const auto parts = json_at<json>(node, "pretokenizers", where);
    require(parts.is_array(), "{}.pretokenizers: expected a list, found {}", where, parts.type_name());
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
    fail("{}.type: expected Sequence, Split, Digits or ByteLevel, found \"{}\", which is not supported", where, type);
  }
}

}  // namespace

std::unique_ptr<Splitter> make_pre_tokenizer(const json& node, const std::string& where) {
  require(
      !node.is_null(),
      "{}: is missing; only byte-level tokenizers are supported, whose last pre-tokenizer is ByteLevel",
      where);
  std::vector<std::unique_ptr<Splitter>> steps;
  bool ended = false;
  read_steps(node, where, steps, ended);
  require(ended, "{}: contains no ByteLevel; only byte-level tokenizers are supported", where);
  if (steps.size() == 1) {
    return std::move(steps.front());
  }
  return std::make_unique<SequenceSplitter>(std::move(steps));
}

}  // namespace lehr::data

#include "lehr/data/normalizer.h"

#include <algorithm>

#include "lehr/data/normalize.h"
#include "lehr/data/tokenizer_json.h"

namespace lehr::data {

using nlohmann::json;

namespace {
constexpr size_t kMostSteps = 64;
constexpr size_t kMostGrowth = 64;
constexpr size_t kMostPrepended = 64;

void replace_all(std::string_view text, const std::string& pattern, const std::string& content, std::string& result) {
  result.clear();
  result.reserve(text.size());
  size_t begin = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, begin)) {
    result.append(text, begin, at - begin);
    result += content;
    begin = at + pattern.size();
  }
  result.append(text, begin);
}
}  // namespace

Normalizer Normalizer::read(const json& node, const std::string& where) {
  Normalizer normalizer;
  if (!node.is_null()) {
    normalizer.add(node, where);
  }
  return normalizer;
}

void Normalizer::add(const json& node, const std::string& where) {
  const auto type = json_at<std::string>(node, "type", where);
  if (type == "Sequence") {
    const auto parts = json_list_at(node, "normalizers", where);
    for (size_t i = 0; i < parts.size(); ++i) {
      add(parts[i], fmt::format("{}.normalizers[{}]", where, i));
    }
    return;
  }
  require(steps_.size() < kMostSteps, "{}: more than {} steps", where, kMostSteps);
  if (type == "NFC") {
    steps_.emplace_back(Nfc{});
  } else if (type == "Prepend") {
    const auto text = json_at<std::string>(node, "prepend", where);
    prepended_ += text.size();
    steps_.emplace_back(Prepend{text});
  } else if (type == "Replace") {
    const auto pattern = json_at<json>(node, "pattern", where);
    require(
        !pattern.is_object() || !pattern.contains("Regex"),
        "{}.pattern: expected a String, found a regular expression, which is not supported",
        where);
    const auto text = json_at<std::string>(pattern, "String", where + ".pattern");
    const auto content = json_or<std::string>(node, "content", "", where);
    require(!text.empty(), "{}.pattern.String: expected a text to replace, found none", where);
    const size_t factor = std::max<size_t>(1, (content.size() + text.size() - 1) / text.size());
    growth_ *= factor;
    prepended_ *= factor;
    require(growth_ <= kMostGrowth, "{}.content: makes a text more than {} times as long", where, kMostGrowth);
    steps_.emplace_back(Replace{text, content});
  } else {
    fail(
        "{}.type: expected NFC, Prepend, Replace, a Sequence of these, or null, found \"{}\", which is not supported",
        where,
        type);
  }
  require(prepended_ <= kMostPrepended, "{}: prepends more than {} bytes to a text", where, kMostPrepended);
}

bool Normalizer::prepends() const {
  return std::any_of(
      steps_.begin(), steps_.end(), [](const Step& step) { return std::holds_alternative<Prepend>(step); });
}

std::string_view Normalizer::apply(std::string_view text, Buffers& buffers, bool continued) const {
  for (const Step& step : steps_) {
    // A step may leave a text as it is, so that it still lies in the buffer that an earlier step filled.
    std::string& result = text.data() == buffers.first.data() ? buffers.second : buffers.first;
    if (std::holds_alternative<Nfc>(step)) {
      text = to_nfc(text, result);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      replace_all(text, replace->pattern, replace->content, result);
      text = result;
    } else if (!continued && !text.empty()) {
      result.assign(std::get<Prepend>(step).text).append(text);
      text = result;
    }
  }
  return text;
}

}  // namespace lehr::data

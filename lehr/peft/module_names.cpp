#include "lehr/peft/module_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/name_pattern.h"
#include "lehr/config/suggest.h"

namespace lehr::peft {

namespace {
std::string after_last_dot(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

// Removes the syntax of a pattern: "model\.layers\..*\.q_proj" -> "model.layers.q_proj".
std::string words_of(const std::string& pattern) {
  std::string words;
  for (const char c : pattern) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      words += c;
    } else if (c == '.' && !words.empty() && words.back() != '.') {
      words += c;
    }
  }
  while (!words.empty() && words.back() == '.') {
    words.pop_back();
  }
  return words;
}

// The nearest names by the component after their last dot, one name per component, because layers differ only in their
// index.
std::vector<std::string> nearest(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string words = words_of(pattern);
  std::vector<std::pair<int64_t, std::string>> ranked;
  std::set<std::string> seen;
  for (const auto& name : names) {
    const std::string last = after_last_dot(name);
    if (seen.insert(last).second) {
      ranked.emplace_back(std::min(edit_distance(words, name), edit_distance(after_last_dot(words), last)), name);
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> best;
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(kShown, ranked.size()); ++i) {
    best.push_back(ranked[i].second);
  }
  return best;
}

NamePattern compiled(const std::string& pattern, const std::string& subject) {
  try {
    return NamePattern(pattern);
  } catch (const Error& error) {
    fail("{}: the pattern {}", subject, error.what());
  }
}
}  // namespace

std::vector<std::string> matching(
    const std::string& pattern,
    const std::vector<std::string>& names,
    const std::string& subject,
    const std::string& what) {
  const NamePattern expression = compiled(pattern, subject);
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), [&](const std::string& name) {
    return expression.matches(name);
  });
  if (!found.empty()) {
    return found;
  }
  // PEFT would match the end of a name, too.
  const std::string longer = pattern.find('|') == std::string::npos ? ".*" + pattern : ".*(" + pattern + ")";
  const NamePattern ending(longer);
  const bool ends =
      std::any_of(names.begin(), names.end(), [&](const std::string& name) { return ending.matches(name); });
  fail(
      "{}: \"{}\" matches the whole name of no {}{}; the nearest are: {}",
      subject,
      pattern,
      what,
      ends ? fmt::format(" (\"{}\" does)", longer) : "",
      fmt::join(nearest(pattern, names), ", "));
}

}  // namespace lehr::peft

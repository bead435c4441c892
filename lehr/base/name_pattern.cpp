#include "lehr/base/name_pattern.h"

#include <regex>

#include "lehr/base/error.h"

namespace lehr {

struct NamePattern::Compiled {
  std::regex regex;
};

NamePattern::NamePattern(const std::string& pattern) {
  try {
    compiled_ = std::make_shared<const Compiled>(Compiled{std::regex(pattern)});
  } catch (const std::regex_error& error) {
    fail("\"{}\" is not a regular expression: {}", pattern, error.what());
  }
}

bool NamePattern::matches(const std::string& name) const {
  return std::regex_match(name, compiled_->regex);
}

bool NamePattern::matches_part(const std::string& name) const {
  return std::regex_search(name, compiled_->regex);
}

std::string NamePattern::problem(const std::string& pattern) {
  try {
    const NamePattern compiled(pattern);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace lehr

// Regular expressions in configs, for names of parameters and modules.
#pragma once

#include <memory>
#include <string>

namespace lehr {

/// A regular expression in ECMAScript's syntax. For patterns of the user; those from files of others are FilePatterns.
class NamePattern {
 public:
  /// Throws a usage error, "..." is not a regular expression, with the reason.
  explicit NamePattern(const std::string& pattern);

  /// Returns whether the whole name matches.
  bool matches(const std::string& name) const;
  /// Returns whether any part of the name matches.
  bool matches_part(const std::string& name) const;

  /// Returns the message of the constructor's error; empty for a valid pattern.
  static std::string problem(const std::string& pattern);

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace lehr

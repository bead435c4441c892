// Regular expressions from untrusted files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lehr {

/// A regular expression in Perl's syntax, which Python's `re` mostly shares, with limits on its length and on the work
/// of a match. std::regex has no such limits: a pattern of a few bytes can take hours, or overflow the stack.
class FilePattern {
 public:
  /// `where` names file and field in messages. Throws a usage error for an invalid pattern, or one of more than 4096
  /// bytes.
  FilePattern(const std::string& pattern, std::string where);
  ~FilePattern();
  FilePattern(FilePattern&&) noexcept;

  /// Returns whether the whole text matches. Throws a usage error if that takes too many steps.
  bool matches(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

}  // namespace lehr

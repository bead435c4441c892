// Errors in templates.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lehr::data::jinja {

/// An error in a template. The innermost node that sees it fills in the line, `Template` the name of the file.
class Problem : public std::runtime_error {
 public:
  explicit Problem(const std::string& message, int line = 0) : std::runtime_error(message), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

/// Throws a Problem without a line, which the innermost node adds.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem(fmt::format(format, std::forward<Args>(args)...));
}

/// Maximum bytes of a string that an operator or a filter creates, or of a list with everything in it.
inline constexpr size_t kMaxBytes = size_t{1} << 25;
/// Throws Problem if that many bytes are more than kMaxBytes; `what` would make them.
void require_bytes(size_t bytes, std::string_view what);

}  // namespace lehr::data::jinja

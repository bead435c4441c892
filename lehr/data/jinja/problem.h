// Errors in templates.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
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

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lehr::data::jinja

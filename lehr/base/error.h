// The one error type of Lehr, and the two ways to raise it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lehr {

/// Who can mend what went wrong, which is what the exit code of the program tells.
enum class ErrorKind {
  usage,    ///< The user: wrong config, command line, file content or data. Exit code 2.
  runtime,  ///< The environment: disk full, lost process, non-finite loss. Exit code 1.
};

/// Everything Lehr throws. The message starts with the subject (a file and line, a key, a tensor's name), says what was
/// expected and what was found, and ends with what to do where that is not plain.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  /// The exit code of a program that ends with this error.
  int exit_code() const { return kind_ == ErrorKind::usage ? 2 : 1; }

 private:
  ErrorKind kind_;
};

/// Throws a usage error: something the user gave is wrong.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws a runtime error: the input was fine, the world was not.
template <class... Args>
[[noreturn]] void fail_runtime(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::runtime, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws a usage error unless `condition` holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) {
    fail(format, std::forward<Args>(args)...);
  }
}

}  // namespace lehr

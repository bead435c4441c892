// The error type of Lehr, and the functions that throw it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lehr {

/// The party that can fix the problem: the user or the environment. Determines the program's exit code.
enum class ErrorKind {
  usage,    ///< The user: wrong config, command line, file content or data. Exit code 2.
  runtime,  ///< The environment: disk full, lost process, non-finite loss. Exit code 1.
  bug,      ///< Lehr: an invariant does not hold. Exit code 4.
};

/// The type of all exceptions that Lehr throws. The message starts with the subject (a file and line, a key, a tensor's
/// name), states what was expected and what was found, and ends with the remedy where it is not obvious.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  /// The exit code of a program that ends with this error.
  int exit_code() const { return kind_ == ErrorKind::usage ? 2 : kind_ == ErrorKind::bug ? 4 : 1; }

 private:
  ErrorKind kind_;
};

/// Throws a usage error: an input of the user is wrong.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws a runtime error: the input is valid, but the environment failed.
template <class... Args>
[[noreturn]] void fail_runtime(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::runtime, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws a usage error unless `condition` is true.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) {
    fail(format, std::forward<Args>(args)...);
  }
}

/// Throws an error of kind bug: `message`, a request to report it, and the call stack.
[[noreturn]] void fail_bug(const std::string& message);

/// Throws an error of kind bug unless `condition` holds. For conditions that no input can break.
template <class... Args>
void invariant(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) {
    fail_bug(fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace lehr

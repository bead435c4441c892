// What all harnesses share: the limits that hold for each input, and refusals.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lehr/base/error.h"

namespace lehr::fuzz {

/// Reads one input; defined by each harness. A crash, an exception other than lehr::Error, a bug in Lehr
/// (ErrorKind::bug), or more memory than 64 MiB + 4 times the input ends the run. libFuzzer's -timeout is the limit of
/// time.
void read_input(std::string_view input);

/// Ends the run with this message, as a crash.
[[noreturn]] void broken(const std::string& what);

/// Runs `body`. Returns false if it refuses the input with a usage or runtime error.
template <class Body>
bool accepts(const Body& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::bug) {
      broken(error.what());
    }
    return false;
  }
}

/// A file in memory for parsers that open files; each call replaces its content. `name` has no slash.
std::filesystem::path as_file(const std::string& name, std::string_view content);
/// The folder of those files.
const std::filesystem::path& folder();

/// Cuts the input at its first zero byte: the part before it, and the rest.
std::pair<std::string_view, std::string_view> cut(std::string_view input);

}  // namespace lehr::fuzz

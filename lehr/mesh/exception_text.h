// What an exception says to people: LibTorch's own carry stack traces of its sources.
#pragma once

#include <exception>
#include <string>

namespace lehr::mesh {

/// The message without a stack trace.
std::string exception_text(const std::exception& problem);

}  // namespace lehr::mesh

// Text for messages: of exceptions (LibTorch's own carry stack traces of its sources) and of durations.
#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace lehr::mesh {

/// Returns the message without a stack trace.
std::string exception_text(const std::exception& problem);

/// "2.5 s".
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace lehr::mesh

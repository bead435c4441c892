#include "lehr/mesh/exception_text.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace lehr::mesh {

std::string exception_text(const std::exception& problem) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&problem);
  const std::string text = torch != nullptr ? torch->what_without_backtrace() : problem.what();
  // Some exceptions carry the stack trace in the message itself.
  return text.substr(0, text.find("\nException raised from "));
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

}  // namespace lehr::mesh

#include "lehr/base/progress.h"

#include "lehr/base/log.h"

namespace lehr {

std::string progress_text(const std::string& what, int64_t done, int64_t all, double seconds) {
  const std::string text = fmt::format("{}: {} of {}", what, done, all);
  if (done == 0) {
    return text;
  }
  const double left = seconds / static_cast<double>(done) * static_cast<double>(all - done);
  return fmt::format("{}, {} left", text, human_seconds(left));
}

}  // namespace lehr

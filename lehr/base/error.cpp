#include "lehr/base/error.h"

#include <c10/util/Backtrace.h>

namespace lehr {

void fail_bug(const std::string& message) {
  throw Error(
      ErrorKind::bug,
      fmt::format(
          "bug in Lehr: {}. This is not your fault; please report it with this message and the config. Call stack:\n{}",
          message,
          c10::get_backtrace(/*frames_to_skip=*/1, /*maximum_number_of_frames=*/24)));
}

}  // namespace lehr

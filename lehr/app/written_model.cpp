#include "lehr/app/written_model.h"

#include <fmt/ranges.h>

#include "lehr/base/log.h"

namespace lehr::app {

void print_written(const std::string& folder, const pretrained::WrittenModel& written) {
  fmt::print(
      "{}: {} tensors, {} in {} {}; {}\n",
      folder,
      written.num_tensors,
      human_bytes(static_cast<double>(written.num_bytes)),
      written.num_files,
      written.num_files == 1 ? "file" : "files",
      fmt::join(written.companions, ", "));
}

}  // namespace lehr::app

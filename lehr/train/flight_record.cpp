#include "lehr/train/flight_record.h"

#include <fmt/format.h>

#include <filesystem>

#include "lehr/base/file.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::train {

void write_flight_record(const std::string& dump_folder, const Ranks& ranks) noexcept {
  mesh::Watchdog* const watch = ranks.context() != nullptr ? ranks.context()->transport().watch() : nullptr;
  if (watch == nullptr) {
    return;
  }
  try {
    const auto folder = std::filesystem::path(dump_folder) / "flight_record";
    std::filesystem::create_directories(folder);
    write_file_atomically(
        folder / fmt::format("rank_{}.txt", ranks.context()->rank()),
        fmt::format(
            "rank {} ({}) {}\n{}",
            ranks.context()->rank(),
            ranks.context()->coordinates(),
            watch->where(),
            watch->log().text()));
  } catch (const std::exception&) {
    // The failure that led here is reported; a record that cannot be written must not hide it.
  }
}

}  // namespace lehr::train

// Whether the files of a checkpoint still are what was written: their sizes and checksums, kept beside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lehr/state/coordinator.h"

namespace lehr::state {

/// What integrity.json says of one file.
struct FileIntegrity {
  int64_t num_bytes = 0;
  uint32_t crc32c = 0;  ///< Of the whole file, as `crc32c` of any other program gives it.
  bool operator==(const FileIntegrity&) const = default;
};
/// By the file's name in the folder.
using Integrity = std::map<std::string, FileIntegrity>;

/// The file, in the folder of the checkpoint, and its content.
inline constexpr const char* kIntegrityFile = "integrity.json";
std::string format_integrity(const Integrity& files);
/// Throws usage errors that start with `subject`.
Integrity parse_integrity(const std::string& text, const std::string& subject);

/// What is wrong with the files that integrity.json of the folder names; nothing if all are as they were written. Each
/// rank reads its share of the bytes when `contents` is set, else only sizes are compared. A checkpoint without that
/// file, of an older version, passes. All ranks call it together and get the same answer, one line that names the first
/// file at fault.
std::optional<std::string> find_damage(const std::filesystem::path& folder, bool contents, Coordinator& coordinator);

}  // namespace lehr::state

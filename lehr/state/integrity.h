// Integrity of a checkpoint's files: their sizes and checksums, stored in integrity.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lehr/state/coordinator.h"

namespace lehr::state {

/// The entry of one file in integrity.json.
struct FileIntegrity {
  int64_t num_bytes = 0;
  uint32_t crc32c = 0;  ///< Standard CRC-32C of the whole file, as computed by any other program.
  bool operator==(const FileIntegrity&) const = default;
};
/// Indexed by the file's name in the folder.
using Integrity = std::map<std::string, FileIntegrity>;

/// Name of the file in the checkpoint's folder, and its content.
inline constexpr const char* kIntegrityFile = "integrity.json";
std::string format_integrity(const Integrity& files);
/// Parses the content. Throws usage errors that start with `subject`.
Integrity parse_integrity(const std::string& text, const std::string& subject);

/// Checks the files named in the folder's integrity.json and returns a description of the first damaged file, one line;
/// nothing if all are unchanged. With `contents` each rank reads its share of the bytes; without it only sizes are
/// compared. A checkpoint without integrity.json, of an older version, passes. All ranks must call it together and get
/// the same result. Throws a runtime error if a file exists and cannot be read, which may pass and is no damage.
std::optional<std::string> find_damage(const std::filesystem::path& folder, bool contents, Coordinator& coordinator);

}  // namespace lehr::state

// Reading, mapping and atomic writing of whole files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lehr {

/// Returns the content of a file. Throws a usage error that names the file if it is missing or no regular file, and a
/// runtime error if it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Throws a usage error if there is something else than a file at `path`, also at the end of a link: a new file would
/// take the place of a folder or a device.
void require_replaceable(const std::filesystem::path& path);

/// Creates a file for writing and returns its descriptor; `name` gets six random characters as its end. Its permissions
/// follow the umask, as those of mkstemp do not. Returns -1 and sets errno on failure.
int create_unique(std::string& name);

/// Replaces `path` atomically by a file with this content: temporary file in the same folder, fsync, rename. A link is
/// replaced, not followed. Throws as require_replaceable, and a runtime error with the path and the reason (such as a
/// full disk); the old file is then unchanged.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// A read-only memory-mapped file. An empty file is an empty span.
class MappedFile {
 public:
  /// Throws as read_file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lehr

// Files as a whole: read, mapped, and written so that nobody ever sees half of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lehr {

/// The content of a file. Throws a usage error that names it when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Replaces `path` by a file with this content in one step: a temporary file in the same folder, fsync, rename. Throws
/// a runtime error with the path and the reason (a full disk, say); the old file then stands.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// A file as memory, read-only. Empty files are empty spans.
class MappedFile {
 public:
  /// Throws a usage error that names the file when it cannot be opened.
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

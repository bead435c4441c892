// A file that is written sequentially through a buffer, and removed unless it is published.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lehr::data {

/// Writes to a temporary file beside `path`, which publish() renames atomically. File system errors are runtime errors
/// that name the path.
class AppendFile {
 public:
  /// Follows the name of the file in that of the temporary one, which stays if the process is killed.
  static constexpr const char* kUnfinished = ".partial-";

  /// Creates the folder of `path` if it does not exist.
  explicit AppendFile(std::filesystem::path path);
  /// Removes the file unless it was published.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(const void* data, size_t size);
  /// Overwrites bytes that were appended earlier.
  void overwrite(int64_t position, const void* data, size_t size);
  /// Appends the content of `other`.
  void append(AppendFile& other);
  int64_t size() const { return size_; }

  /// Syncs the file to disk and renames it.
  void publish();

 private:
  void flush();
  [[noreturn]] void fail_write(const char* doing) const;

  std::filesystem::path path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  std::vector<char> buffer_;
};

}  // namespace lehr::data

// A file that is written in order, in large pieces, and vanishes unless it is published.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lehr::data {

/// Writes to a temporary file beside `path`, which gets its name in one atomic step in publish(). Errors of the file
/// system are runtime errors that name the path.
class OutputFile {
 public:
  /// Makes the folder of `path` when it does not exist.
  explicit OutputFile(std::filesystem::path path);
  /// Removes the file unless it was published.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* data, size_t size);
  /// Overwrites bytes that were appended before.
  void overwrite(int64_t position, const void* data, size_t size);
  /// Appends all that `other` holds.
  void append(OutputFile& other);
  int64_t size() const { return size_; }

  /// Puts the bytes on disk and gives the file its name.
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

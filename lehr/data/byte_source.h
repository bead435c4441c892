// Bytes of a file in order, decompressed on the way: plain, gzip (.gz) or Zstandard (.zst).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Writes up to `capacity` bytes to `out` and returns how many; 0 at the end. Throws a usage error that names the
  /// file when it is truncated or damaged.
  virtual int64_t read(char* out, int64_t capacity) = 0;
};

/// Opens `path`; its ending says how it is compressed.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path);

/// Cuts bytes into lines.
class LineReader {
 public:
  explicit LineReader(std::unique_ptr<ByteSource> source);
  /// The next line without its "\n" (a "\r" before it stays), valid until the next call; false at the end.
  bool next(std::string_view& line);
  /// Number of the line that next() returned, from 1.
  int64_t line_number() const { return line_number_; }

 private:
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t line_number_ = 0;
  bool at_end_ = false;
};

}  // namespace lehr::data

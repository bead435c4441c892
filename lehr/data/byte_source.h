// Sequential bytes of a file, decompressed while reading: plain, gzip (.gz) or Zstandard (.zst).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data {

/// The bytes of one file, after decompression.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Writes up to `capacity` bytes to `out` and returns their number; 0 at the end. Throws a usage error that names the
  /// file if it is truncated or damaged.
  virtual int64_t read(char* out, int64_t capacity) = 0;
  /// Returns the file's path, for messages.
  virtual const std::string& name() const = 0;
};

/// Opens `path`, a regular file; its extension determines the compression. Reading more than 64 MiB plus a thousand
/// times the size of a compressed file is a usage error.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path);

/// The UTF-8 byte-order mark, with which a file may begin.
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
/// Returns line `number` of a file, counted from 1, without the mark.
std::string_view without_byte_order_mark(std::string_view line, int64_t number);

/// Splits bytes into lines.
class LineReader {
 public:
  explicit LineReader(std::unique_ptr<ByteSource> source);
  /// Reads the next line without its "\n" (a "\r" before it is kept), valid until the next call. Returns false at the
  /// end. A line of more than 1 GiB is a usage error.
  bool next(std::string_view& line);
  /// Returns the number of the line that next() returned, from 1.
  int64_t line_number() const { return line_number_; }

 private:
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t line_number_ = 0;
  bool at_end_ = false;
};

}  // namespace lehr::data

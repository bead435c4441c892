// Sequential readers of plain, gzip and Zstandard files.
#include "lehr/data/byte_source.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/data/expansion.h"
#include "lehr/data/limits.h"

namespace lehr::data {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::filesystem::path& path) : name_(path.string()), file_(path) {}

  const std::string& name() const override { return name_; }
  int64_t size() const { return file_.size(); }

  int64_t read(char* out, int64_t capacity) override {
    for (;;) {
      const ssize_t got = ::read(file_.descriptor(), out, static_cast<size_t>(capacity));
      if (got >= 0) {
        return got;
      }
      if (errno != EINTR) {
        fail_runtime("{}: cannot be read: {}", name_, std::strerror(errno));
      }
    }
  }

 private:
  std::string name_;
  OpenFile file_;
};

// Members are inflated one by one, because zlib's gzread takes bytes that begin no member for the end of the file, and
// so would lose all that follows a damaged header.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(const std::filesystem::path& path)
      : name_(path.string()), raw_(path), expansion_(name_, raw_.size()), block_(kBlockBytes) {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, kGzipOnly + MAX_WBITS) != Z_OK) {
      fail_runtime("{}: cannot be opened: zlib has no memory", name_);
    }
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  const std::string& name() const override { return name_; }

  int64_t read(char* out, int64_t capacity) override {
    const auto room = static_cast<uInt>(std::min<int64_t>(capacity, 1 << 30));
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = room;
    while (stream_.avail_out == room && find_member()) {
      inflate_some();
    }
    const auto got = static_cast<int64_t>(room - stream_.avail_out);
    expansion_.add(got);
    return got;
  }

 private:
  // Returns whether there are bytes of a member. Zeros after a member are padding, as gzip writes to tapes.
  bool find_member() {
    for (;;) {
      while (!inside_member_ && members_ > 0 && stream_.avail_in > 0 && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
      }
      if (stream_.avail_in > 0) {
        inside_member_ = true;
        return true;
      }
      const int64_t got = raw_.read(block_.data(), static_cast<int64_t>(block_.size()));
      if (got == 0) {
        require(!inside_member_, "{}: the gzip file is truncated", name_);
        require(members_ > 0, "{}: its name ends in .gz, but it is not a gzip file", name_);
        return false;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(block_.data());
      stream_.avail_in = static_cast<uInt>(got);
    }
  }

  void inflate_some() {
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      ++members_;
      inside_member_ = false;
      ::inflateReset(&stream_);
      return;
    }
    if (status != Z_OK && status != Z_BUF_ERROR) {
      const std::string reason = stream_.msg != nullptr ? stream_.msg : "unknown error";
      require(
          members_ > 0 || reason != "incorrect header check",
          "{}: its name ends in .gz, but it is not a gzip file",
          name_);
      fail("{}: the gzip file is damaged: {}", name_, reason);
    }
  }

  std::string name_;
  PlainSource raw_;
  Expansion expansion_;
  std::vector<char> block_;
  z_stream stream_{};
  int64_t members_ = 0;
  bool inside_member_ = false;
};

class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(const std::filesystem::path& path)
      : name_(path.string()),
        raw_(path),
        expansion_(name_, raw_.size()),
        context_(ZSTD_createDCtx(), ZSTD_freeDCtx),
        block_(kBlockBytes) {}

  const std::string& name() const override { return name_; }

  int64_t read(char* out, int64_t capacity) override {
    ZSTD_outBuffer output{out, static_cast<size_t>(capacity), 0};
    while (output.pos == 0) {
      if (input_.pos == input_.size) {
        input_ = {block_.data(), static_cast<size_t>(raw_.read(block_.data(), static_cast<int64_t>(block_.size()))), 0};
        if (input_.size == 0) {
          require(!inside_frame_, "{}: the Zstandard file is truncated", name_);
          return 0;
        }
      }
      const size_t status = ZSTD_decompressStream(context_.get(), &output, &input_);
      require(ZSTD_isError(status) == 0, "{}: the Zstandard file is damaged: {}", name_, ZSTD_getErrorName(status));
      inside_frame_ = status != 0;
    }
    expansion_.add(static_cast<int64_t>(output.pos));
    return static_cast<int64_t>(output.pos);
  }

 private:
  std::string name_;
  PlainSource raw_;
  Expansion expansion_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  std::vector<char> block_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool inside_frame_ = true;  // so that an empty file counts as truncated
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path) {
  require(!std::filesystem::is_directory(path), "{}: is a folder, expected a file", path.string());
  if (path.extension() == ".gz") {
    return std::make_unique<GzipSource>(path);
  }
  if (path.extension() == ".zst") {
    return std::make_unique<ZstdSource>(path);
  }
  return std::make_unique<PlainSource>(path);
}

std::string_view without_byte_order_mark(std::string_view line, int64_t number) {
  return number == 1 && line.starts_with(kByteOrderMark) ? line.substr(kByteOrderMark.size()) : line;
}

LineReader::LineReader(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {}

bool LineReader::next(std::string_view& line) {
  size_t scanned = position_;
  for (;;) {
    const size_t end = buffer_.find('\n', scanned);
    if (end != std::string::npos || (at_end_ && position_ < buffer_.size())) {
      const size_t stop = std::min(end, buffer_.size());
      line = std::string_view(buffer_).substr(position_, stop - position_);
      position_ = std::min(stop + 1, buffer_.size());
      ++line_number_;
      return true;
    }
    if (at_end_) {
      return false;
    }
    buffer_.erase(0, position_);
    position_ = 0;
    scanned = buffer_.size();
    require(
        scanned <= kMaxLineBytes,
        "{}:{}: the line has more than {} bytes",
        source_->name(),
        line_number_ + 1,
        kMaxLineBytes);
    buffer_.resize(scanned + kBlockBytes);
    const int64_t got = source_->read(buffer_.data() + scanned, kBlockBytes);
    buffer_.resize(scanned + static_cast<size_t>(got));
    at_end_ = got == 0;
  }
}

}  // namespace lehr::data

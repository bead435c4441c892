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

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(const std::filesystem::path& path) : GzipSource(path.string(), OpenFile(path)) {}
  ~GzipSource() override { ::gzclose(file_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  const std::string& name() const override { return name_; }

  int64_t read(char* out, int64_t capacity) override {
    const int got = ::gzread(file_, out, static_cast<unsigned>(std::min<int64_t>(capacity, 1 << 30)));
    int error = Z_OK;
    const char* text = ::gzerror(file_, &error);
    require(error != Z_BUF_ERROR, "{}: the gzip file is truncated", name_);
    require(got >= 0, "{}: the gzip file is damaged: {}", name_, text);
    require(::gzdirect(file_) == 0, "{}: its name ends in .gz, but it is not a gzip file", name_);
    expansion_.add(got);
    return got;
  }

 private:
  GzipSource(const std::string& name, OpenFile file)
      : name_(name), expansion_(name, file.size()), file_(::gzdopen(file.descriptor(), "rb")) {
    require(file_ != nullptr, "{}: cannot be opened: {}", name_, std::strerror(errno));
    file.release();  // zlib closes it
    ::gzbuffer(file_, kBlockBytes);
  }

  std::string name_;
  Expansion expansion_;
  gzFile file_;
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

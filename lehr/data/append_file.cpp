// Buffered writing to a temporary file, which a rename publishes.
#include "lehr/data/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/file.h"

namespace lehr::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto folder = path_.parent_path();
  if (!folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      fail_runtime("{}: the folder cannot be created: {}", folder.string(), error.message());
    }
  }
  temporary_ = path_.string() + kUnfinished;
  descriptor_ = create_unique(temporary_);
  if (descriptor_ < 0) {
    temporary_.clear();
    fail_write("opened for writing");
  }
  buffer_.reserve(kBufferBytes);
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AppendFile::fail_write(const char* doing) const {
  fail_runtime("{}: cannot be {}: {}", path_.string(), doing, std::strerror(errno));
}

void AppendFile::append(const void* data, size_t size) {
  const char* from = static_cast<const char*>(data);
  size_ += static_cast<int64_t>(size);
  while (size > 0) {
    const size_t now = std::min(size, kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + now);
    from += now;
    size -= now;
    if (buffer_.size() == kBufferBytes) {
      flush();
    }
  }
}

void AppendFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t written = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno != EINTR) {
      fail_write("written");
    }
    done += written < 0 ? 0 : static_cast<size_t>(written);
  }
  buffer_.clear();
}

void AppendFile::overwrite(int64_t position, const void* data, size_t size) {
  flush();
  if (::pwrite(descriptor_, data, size, position) != static_cast<ssize_t>(size)) {
    fail_write("written");
  }
}

void AppendFile::append(AppendFile& other) {
  other.flush();
  std::vector<char> block(kBufferBytes);
  for (int64_t position = 0; position < other.size_;) {
    const ssize_t got = ::pread(other.descriptor_, block.data(), block.size(), position);
    if (got <= 0) {
      other.fail_write("read back");
    }
    append(block.data(), static_cast<size_t>(got));
    position += got;
  }
}

void AppendFile::publish() {
  flush();
  if (::fsync(descriptor_) != 0) {
    fail_write("synced to disk");
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    fail_write("closed");
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_write("renamed into place");
  }
  temporary_.clear();
  const auto folder = path_.parent_path().empty() ? std::filesystem::path(".") : path_.parent_path();
  const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor >= 0) {  // so that the new name survives a power failure
    ::fsync(folder_descriptor);
    ::close(folder_descriptor);
  }
}

}  // namespace lehr::data

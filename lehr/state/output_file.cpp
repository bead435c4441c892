#include "lehr/state/output_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/log.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

std::optional<int64_t> free_bytes(const fs::path& path) {
  struct statvfs info {};
  if (::statvfs(path.parent_path().empty() ? "." : path.parent_path().c_str(), &info) != 0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::string amount(int64_t bytes) {
  return fmt::format("{} bytes ({})", bytes, human_bytes(static_cast<double>(bytes)));
}

[[noreturn]] void fail_to_write(const fs::path& path, int64_t num_bytes, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    const auto free = free_bytes(path);
    fail_runtime(
        "{}: cannot be written: {}: {} needed, {} free; free some space, or keep fewer checkpoints",
        path.string(),
        std::strerror(error),
        amount(num_bytes),
        free ? amount(*free) : "an unknown number");
  }
  fail_runtime("{}: cannot be written ({}): {}", path.string(), amount(num_bytes), std::strerror(error));
}

// Beyond `ulimit -f` the kernel would kill the process with a signal, so the limit is checked first.
void check_size_limit(const fs::path& path, int64_t num_bytes) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(num_bytes) > limit.rlim_cur) {
    fail_runtime(
        "{}: cannot be written: {} needed, but files may have at most {} (ulimit -f); raise the limit or save smaller "
        "shards",
        path.string(),
        amount(num_bytes),
        amount(static_cast<int64_t>(limit.rlim_cur)));
  }
}

// Uses fallocate, not posix_fallocate: without support of the file system, the latter writes a byte into every block.
void take_space(int fd, const fs::path& path, int64_t num_bytes) {
  if (num_bytes == 0) {
    return;
  }
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, num_bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    return;
  }
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
    fail_to_write(path, num_bytes, errno);
  }
  const auto free = free_bytes(path);
  if (free && *free < num_bytes) {
    fail_to_write(path, num_bytes, ENOSPC);
  }
  if (::ftruncate(fd, num_bytes) != 0) {
    fail_to_write(path, num_bytes, errno);
  }
}
}  // namespace

OutputFile::OutputFile(fs::path path, int fd) : path_(std::move(path)), file_(path_, fd, O_WRONLY) {}

OutputFile OutputFile::create(const fs::path& path, int64_t num_bytes) {
  check_size_limit(path, num_bytes);
  OutputFile file(path, ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.file_.cached() < 0) {
    fail_to_write(path, num_bytes, errno);
  }
  take_space(file.file_.cached(), path, num_bytes);
  return file;
}

OutputFile OutputFile::open(const fs::path& path) {
  OutputFile file(path, ::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.file_.cached() < 0) {
    fail_runtime("{}: cannot be opened for writing: {}", path.string(), std::strerror(errno));
  }
  return file;
}

void OutputFile::write(int64_t offset, std::span<const std::byte> bytes) const {
  if (file_.direct() >= 0 && bytes.size() >= kWorthDirect) {
    // Other writers may share the blocks at both ends, so these are written through the page cache.
    const auto head = static_cast<size_t>((kDiskBlock - offset % kDiskBlock) % kDiskBlock);
    const size_t whole = (bytes.size() - head) / kDiskBlock * kDiskBlock;
    write_cached(offset, bytes.first(head));
    const size_t done = head + write_direct(offset + static_cast<int64_t>(head), bytes.subspan(head, whole));
    offset += static_cast<int64_t>(done);
    bytes = bytes.subspan(done);
  }
  write_cached(offset, bytes);
}

// Returns the number of bytes written, which is less than all if the file system does not support it after all.
size_t OutputFile::write_direct(int64_t offset, std::span<const std::byte> blocks) const {
  size_t done = 0;
  while (done < blocks.size()) {
    const size_t piece = std::min(blocks.size() - done, static_cast<size_t>(kDiskPiece));
    std::memcpy(disk_staging(), blocks.data() + done, piece);
    const ssize_t wrote = ::pwrite(file_.direct(), disk_staging(), piece, offset + static_cast<int64_t>(done));
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote < 0 && errno != EINVAL && errno != EOPNOTSUPP) {
      fail_to_write(path_, static_cast<int64_t>(blocks.size() - done), errno);
    }
    if (wrote <= 0 || wrote % kDiskBlock != 0) {
      break;
    }
    done += static_cast<size_t>(wrote);
  }
  return done;
}

void OutputFile::write_cached(int64_t offset, std::span<const std::byte> bytes) const {
  // One call writes less than 2 GiB; smaller pieces let a killed process end quickly.
  constexpr size_t kPiece = size_t{64} << 20;
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(file_.cached(), bytes.data(), std::min(bytes.size(), kPiece), offset);
    if (wrote < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail_to_write(path_, static_cast<int64_t>(bytes.size()), errno);
    }
    offset += wrote;
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
}

void OutputFile::sync() const {
  if (::fsync(file_.cached()) != 0) {
    fail_runtime("{}: cannot be written to disk: {}", path_.string(), std::strerror(errno));
  }
}

void OutputFile::require_size(int64_t num_bytes) const {
  struct stat info {};
  if (::fstat(file_.cached(), &info) != 0) {
    fail_runtime("{}: cannot be accessed: {}", path_.string(), std::strerror(errno));
  }
  if (info.st_size != num_bytes) {
    fail_runtime(
        "{}: expected {} bytes after writing, found {}; is another process writing there?",
        path_.string(),
        num_bytes,
        info.st_size);
  }
}

void write_synced(const fs::path& path, std::string_view content) {
  const OutputFile file = OutputFile::create(path, static_cast<int64_t>(content.size()));
  file.write(0, content);
  file.sync();
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    fail_runtime("{}: cannot be opened: {}", folder.string(), std::strerror(errno));
  }
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some file systems do not support, and do not need, fsync of folders.
  if (result != 0 && error != EINVAL && error != EOPNOTSUPP) {
    fail_runtime("{}: cannot be written to disk: {}", folder.string(), std::strerror(error));
  }
}

}  // namespace lehr::state

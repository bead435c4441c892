#include "lehr/state/input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "lehr/base/error.h"

namespace lehr::state {

InputFile::InputFile(std::filesystem::path path, Reading reading)
    : path_(std::move(path)), reading_(reading), file_(path_, ::open(path_.c_str(), O_RDONLY | O_CLOEXEC), O_RDONLY) {
  if (file_.cached() < 0) {
    fail_runtime("{}: cannot be opened: {}", path_.string(), std::strerror(errno));
  }
}

void InputFile::read(int64_t offset, std::span<std::byte> bytes) const {
  if (reading_ == Reading::again && bytes.size() >= kWorthDirect) {
    // Starts readahead of the whole range, so that the disk reads while a piece is copied. A hint: failures are
    // ignored.
    ::posix_fadvise(file_.cached(), offset, static_cast<off_t>(bytes.size()), POSIX_FADV_WILLNEED);
  }
  while (!bytes.empty()) {
    const size_t got = read_some(offset, bytes);
    offset += static_cast<int64_t>(got);
    bytes = bytes.subspan(got);
  }
}

// Returns whether the whole range is in the page cache. Uses mincore, as a non-blocking read (RWF_NOWAIT) would start
// readahead of data that is then read directly.
bool InputFile::is_cached(int64_t offset, size_t size) const {
  const int64_t before = offset % kDiskBlock;
  const size_t whole = size + static_cast<size_t>(before);
  void* const map = ::mmap(nullptr, whole, PROT_READ, MAP_SHARED, file_.cached(), offset - before);
  if (map == MAP_FAILED) {
    return false;
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((whole + page - 1) / page);
  const bool known = ::mincore(map, whole, resident.data()) == 0;
  ::munmap(map, whole);
  return known && std::all_of(resident.begin(), resident.end(), [](unsigned char one) { return (one & 1) != 0; });
}

// Reads at least one byte and returns the number read.
size_t InputFile::read_some(int64_t offset, std::span<std::byte> bytes) const {
  const size_t size = std::min(bytes.size(), static_cast<size_t>(kDiskPiece));
  if (reading_ == Reading::once && file_.direct() >= 0 && bytes.size() >= kWorthDirect && !is_cached(offset, size)) {
    if (const size_t read = read_direct(offset, bytes); read > 0) {
      return read;
    }
  }
  ssize_t got = 0;
  do {
    got = ::pread(file_.cached(), bytes.data(), size, offset);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    fail_runtime("{}: cannot be read: {}", path_.string(), got == 0 ? "it ends too early" : std::strerror(errno));
  }
  return static_cast<size_t>(got);
}

// Returns the number of bytes read; 0 if the file system does not support it after all.
size_t InputFile::read_direct(int64_t offset, std::span<std::byte> bytes) const {
  const int64_t before = offset % kDiskBlock;
  const int64_t blocks = (before + static_cast<int64_t>(bytes.size()) + kDiskBlock - 1) / kDiskBlock;
  const auto size = static_cast<size_t>(std::min(kDiskPiece, blocks * kDiskBlock));
  ssize_t got = 0;
  do {
    got = ::pread(file_.direct(), disk_staging(), size, offset - before);
  } while (got < 0 && errno == EINTR);
  if (got <= before) {
    return 0;
  }
  const size_t useful = std::min(bytes.size(), static_cast<size_t>(got - before));
  std::memcpy(bytes.data(), disk_staging() + before, useful);
  return useful;
}

}  // namespace lehr::state

#include "lehr/state/direct_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <utility>

#include "lehr/memory/map_pages.h"

namespace lehr::state {

namespace {
struct Unmap {
  void operator()(std::byte* memory) const { ::munmap(memory, kDiskPiece); }
};
}  // namespace

std::byte* disk_staging() {
  // A buffer, no scope.
  static thread_local const std::unique_ptr<std::byte, Unmap> memory(static_cast<std::byte*>(map_pages(kDiskPiece)));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory.get();
}

DiskDescriptors::DiskDescriptors(const std::filesystem::path& path, int cached, int access) : cached_(cached) {
  if (cached_ >= 0) {
    direct_ = ::open(path.c_str(), access | O_DIRECT | O_CLOEXEC);
  }
}

DiskDescriptors::DiskDescriptors(DiskDescriptors&& other) noexcept
    : cached_(std::exchange(other.cached_, -1)), direct_(std::exchange(other.direct_, -1)) {}

DiskDescriptors::~DiskDescriptors() {
  for (const int fd : {cached_, direct_}) {
    if (fd >= 0) {
      ::close(fd);
    }
  }
}

}  // namespace lehr::state

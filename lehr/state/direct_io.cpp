#include "lehr/state/direct_io.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace lehr::state {

namespace {
struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
}  // namespace

std::byte* disk_staging() {
  static thread_local const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, kDiskPiece)));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory.get();
}

}  // namespace lehr::state

#include "lehr/base/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <bit>

#include "lehr/base/error.h"
#include "lehr/base/map_pages.h"
#include "lehr/base/torch.h"

namespace lehr {

namespace {
constexpr size_t kLarge = size_t{1} << 20;

size_t rounded(size_t bytes) {
  const size_t step = std::max<size_t>(std::bit_floor(bytes) / 8, 4096);
  return (bytes + step - 1) / step * step;
}
}  // namespace

KeptBlocks::~KeptBlocks() {
  while (!kept_.empty()) {
    unmap_oldest();
  }
}

void KeptBlocks::unmap_oldest() {
  const Kept oldest = kept_.front();
  const auto same = kept_of_size_.find(oldest.size);
  same->second.pop_front();  // which are in the order of their coming too
  if (same->second.empty()) {
    kept_of_size_.erase(same);
  }
  kept_.pop_front();
  figures_.kept -= oldest.size;
  munmap(oldest.block, oldest.size);
}

void* KeptBlocks::take(size_t bytes) {
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  void* block = nullptr;
  if (const auto same = kept_of_size_.find(size); same != kept_of_size_.end()) {
    const auto newest = same->second.back();  // whose content may still be in a cache
    block = newest->block;
    kept_.erase(newest);
    same->second.pop_back();
    if (same->second.empty()) {
      kept_of_size_.erase(same);
    }
    figures_.kept -= size;
  } else {
    const size_t peak = std::max(figures_.peak, figures_.used + size);
    while (!kept_.empty() && figures_.used + figures_.kept + size > peak + spare_) {
      unmap_oldest();
    }
    block = map_pages(size);
    while (block == nullptr && !kept_.empty()) {
      unmap_oldest();
      block = map_pages(size);
    }
    if (block == nullptr) {
      fail_runtime(
          "memory: the system has none for a tensor of {} MiB; {} MiB are in use", bytes >> 20, figures_.used >> 20);
    }
    figures_.mapped_ever += size;
  }
  used_.emplace(block, size);
  figures_.used += size;
  figures_.peak = std::max(figures_.peak, figures_.used);
  return block;
}

bool KeptBlocks::give_back(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(block);
  if (found == used_.end()) {
    return false;
  }
  const size_t size = found->second;
  used_.erase(found);
  kept_of_size_[size].push_back(kept_.insert(kept_.end(), {block, size}));
  figures_.used -= size;
  figures_.kept += size;
  return true;
}

KeptBlocks::Figures KeptBlocks::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

namespace {
// Tensors may outlive everything that ends with the program.
KeptBlocks& blocks() {
  static auto* const kBlocks = new KeptBlocks(/*spare=*/size_t{64} << 20);
  return *kBlocks;
}

void free_tensor(void* data) {
  if (data == nullptr) {
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  if (!blocks().give_back(data)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(data);
  }
}

class TensorMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLarge) {
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    void* const data = blocks().take(bytes);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &free_tensor, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_tensor; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
}  // namespace

void keep_tensor_memory() {
  static TensorMemory memory;
  c10::SetCPUAllocator(&memory, /*priority=*/1);
  // The heap keeps what is smaller, and what does not belong to tensors.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
}

KeptBlocks::Figures tensor_memory() {
  return blocks().figures();
}

}  // namespace lehr

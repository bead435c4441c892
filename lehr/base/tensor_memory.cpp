#include "lehr/base/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <bit>

#include "lehr/base/error.h"
#include "lehr/base/torch.h"

namespace lehr {

namespace {
constexpr size_t kLarge = size_t{1} << 20;
// The system knows some 65000 mappings of a process, of which others need some.
constexpr size_t kMostParts = 16384;

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

void KeptBlocks::keep(Pages pages) {
  const size_t size = pages.size;
  figures_.kept += size;
  kept_of_size_[size].push_back(kept_.insert(kept_.end(), std::move(pages)));
}

// What is left of a block that was the oldest, or nearly.
void KeptBlocks::keep_as_oldest(Pages pages) {
  const size_t size = pages.size;
  figures_.kept += size;
  kept_of_size_[size].push_front(kept_.insert(kept_.begin(), std::move(pages)));
}

Pages KeptBlocks::take_out(Kept::iterator block) {
  const auto same = kept_of_size_.find(block->size);
  same->second.remove(block);
  if (same->second.empty()) {
    kept_of_size_.erase(same);
  }
  Pages pages = std::move(*block);
  kept_.erase(block);
  figures_.kept -= pages.size;
  return pages;
}

void KeptBlocks::unmap_oldest() {
  const Pages oldest = take_out(kept_.begin());
  parts_ -= oldest.parts.size();
  munmap(oldest.begin, oldest.size);
}

Pages KeptBlocks::take_kept(size_t size) {
  const auto same = kept_of_size_.find(size);
  // The newest, whose content may still be in a cache.
  return same == kept_of_size_.end() ? Pages() : take_out(same->second.back());
}

// Moves pages of kept blocks, `bytes` or a little more, to the beginning of `pages`, which nobody has touched.
void KeptBlocks::fill_from_kept(Pages& pages, size_t bytes) {
  const size_t most = std::min(pages.size, bytes + kHugePage - 1) / kHugePage * kHugePage;
  std::vector<size_t> parts;
  size_t filled = 0;
  for (auto donor = kept_.begin(); filled < most && donor != kept_.end() && parts_ < kMostParts;) {
    const auto next = std::next(donor);
    if (donor->size >= kHugePage) {
      Pages from = take_out(donor);
      parts_ -= from.parts.size();
      for (const size_t part : move_pages(from, pages.begin + filled, most - filled)) {
        parts.push_back(part);
        filled += part;
      }
      if (from.size > 0) {  // there is enough, or the system moves no more
        parts_ += from.parts.size();
        keep_as_oldest(std::move(from));
        break;
      }
    }
    donor = next;
  }
  if (filled < pages.size) {
    parts.push_back(pages.size - filled);
    figures_.mapped_ever += pages.size - filled;
  }
  pages.parts = std::move(parts);
}

Pages KeptBlocks::take_new(size_t size) {
  Pages pages{static_cast<std::byte*>(map_pages(size)), size};
  while (pages.begin == nullptr && !kept_.empty()) {
    unmap_oldest();
    pages.begin = static_cast<std::byte*>(map_pages(size));
  }
  if (pages.begin == nullptr) {
    return pages;
  }
  const size_t most = std::max(figures_.peak, figures_.used + size) + spare_;
  const auto too_much = [&] {
    const size_t all = figures_.used + figures_.kept + size;
    return all - std::min(all, most);
  };
  fill_from_kept(pages, too_much());
  while (!kept_.empty() && too_much() > 0) {
    unmap_oldest();
  }
  parts_ += pages.parts.size();
  return pages;
}

void* KeptBlocks::take(size_t bytes) {
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  Pages pages = take_kept(size);
  if (pages.begin == nullptr) {
    pages = take_new(size);
  }
  void* const block = pages.begin;
  if (block == nullptr) {
    fail_runtime(
        "memory: the system has none for a tensor of {} MiB; {} MiB are in use", bytes >> 20, figures_.used >> 20);
  }
  used_.emplace(block, std::move(pages));
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
  Pages pages = std::move(found->second);
  used_.erase(found);
  figures_.used -= pages.size;
  keep(std::move(pages));
  return true;
}

KeptBlocks::Figures KeptBlocks::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

namespace {
// Tensors may outlive everything that ends with the program.
KeptBlocks& blocks() {
  static auto* const kBlocks = new KeptBlocks(/*spare=*/size_t{32} << 20);
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

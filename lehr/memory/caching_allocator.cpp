#include "lehr/memory/caching_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>

#include "lehr/base/error.h"
#include "lehr/base/torch.h"

namespace lehr {

namespace {
constexpr size_t kLarge = size_t{1} << 20;
// The system allows about 65000 mappings per process, some of which others need.
constexpr size_t kMostParts = 16384;

size_t rounded(size_t bytes) {
  const size_t step = std::max<size_t>(std::bit_floor(bytes) / 8, 4096);
  return (bytes + step - 1) / step * step;
}

// The largest block that serves a request. Smaller blocks consist mostly of small pages, and new small pages cost more
// than wasted ones.
size_t most_for(size_t size) {
  return size < kHugePage ? 2 * size : (size < 8 * kHugePage ? size + size / 4 : size);
}
}  // namespace

CachedBlocks::~CachedBlocks() {
  while (!kept_.empty()) {
    unmap_oldest(kept_.front().size);
  }
}

void CachedBlocks::keep(Pages pages) {
  const size_t size = pages.size;
  figures_.kept += size;
  kept_of_size_[size].push_back(kept_.insert(kept_.end(), std::move(pages)));
}

// Keeps the rest of a block at its position in the order of age; it is the last to serve a request of its size.
void CachedBlocks::keep_rest(Kept::iterator place, Pages pages) {
  const size_t size = pages.size;
  figures_.kept += size;
  parts_ += pages.parts.size();
  kept_of_size_[size].push_front(kept_.insert(place, std::move(pages)));
}

Pages CachedBlocks::take_out(Kept::iterator block) {
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

void CachedBlocks::unmap_oldest(size_t bytes) {
  Pages oldest = take_out(kept_.begin());
  parts_ -= oldest.parts.size();
  unmap_last(oldest, bytes);
  if (oldest.size > 0) {
    keep_rest(kept_.begin(), std::move(oldest));
  }
}

Pages CachedBlocks::take_kept(size_t size) {
  const size_t most = std::min(most_for(size), size + spare_ - figures_.wasted);
  const auto fit = kept_of_size_.lower_bound(size);
  // The newest block, whose content may still be in a cache.
  return fit == kept_of_size_.end() || fit->first > most ? Pages() : take_out(fit->second.back());
}

// Moves about `bytes` of pages from free blocks to `pages`, which must be untouched.
void CachedBlocks::fill_from_kept(Pages& pages, size_t bytes) {
  constexpr size_t kTooSmall = size_t{64} << 10;  // to be kept
  PagesToFill filling(pages);
  bool moves = true;
  for (auto donor = kept_.begin(); moves && filling.bytes() < bytes && donor != kept_.end() && parts_ < kMostParts;) {
    const auto next = std::next(donor);
    if (filling.can_use(*donor)) {
      Pages from = take_out(donor);
      parts_ -= from.parts.size();
      moves = filling.take(from, bytes);
      if (from.size < kTooSmall) {
        unmap_last(from, from.size);
      } else {
        keep_rest(next, std::move(from));
      }
    }
    donor = next;
  }
  figures_.mapped_ever += filling.finish();
}

Pages CachedBlocks::take_new(size_t size) {
  Pages pages{static_cast<std::byte*>(map_pages(size)), size};
  while (pages.begin == nullptr && !kept_.empty()) {
    unmap_oldest(kept_.front().size);
    pages.begin = static_cast<std::byte*>(map_pages(size));
  }
  if (pages.begin == nullptr) {
    return pages;
  }
  const size_t most = std::max(figures_.peak, figures_.used + size) + spare_;
  const auto too_much = [&] {
    const size_t all = figures_.used + figures_.wasted + figures_.kept + size;
    return all - std::min(all, most);
  };
  fill_from_kept(pages, too_much());
  while (!kept_.empty() && too_much() > 0) {
    unmap_oldest(too_much());
  }
  parts_ += pages.parts.size();
  return pages;
}

void* CachedBlocks::allocate(size_t bytes) {
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  Pages pages = take_kept(size);
  if (pages.begin == nullptr) {
    pages = take_new(size);
  }
  void* const block = pages.begin;
  if (block == nullptr) {
    fail_runtime("memory: out of memory for a tensor of {} MiB; {} MiB are in use", bytes >> 20, figures_.used >> 20);
  }
  figures_.used += size;
  figures_.wasted += pages.size - size;
  used_.emplace(block, Used{std::move(pages), size});
  figures_.peak = std::max(figures_.peak, figures_.used);
  return block;
}

bool CachedBlocks::free(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(block);
  if (found == used_.end()) {
    return false;
  }
  auto [pages, request] = std::move(found->second);
  used_.erase(found);
  figures_.used -= request;
  figures_.wasted -= pages.size - request;
  keep(std::move(pages));
  return true;
}

CachedBlocks::Figures CachedBlocks::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

namespace {
// Never destroyed, because tensors may outlive static objects.
CachedBlocks& blocks() {
  static auto* const kBlocks = new CachedBlocks(/*spare=*/size_t{32} << 20);
  return *kBlocks;
}

std::atomic<bool> keeps_tensors = false;

void free_tensor(void* data) {
  if (data == nullptr) {
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  if (!blocks().free(data)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(data);
  }
}

class TensorMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLarge) {
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    void* const data = blocks().allocate(bytes);
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
  keeps_tensors = true;
  // The heap keeps smaller blocks, and memory that does not belong to tensors.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
  // The fast bins of glibc keep neighbours of freed blocks from being merged. Aligned blocks of tensors below 1 KiB,
  // which one thread allocates and another one frees, then found no free block: the heap grew by 0.7 KiB per step.
  mallopt(M_MXFAST, 0);
}

CachedBlocks::Figures tensor_memory() {
  return blocks().figures();
}

namespace {
constexpr std::align_val_t kLine{64};
}  // namespace

ScratchMemory::ScratchMemory(size_t bytes)
    : kept_(keeps_tensors && bytes >= kLarge), data_(kept_ ? blocks().allocate(bytes) : ::operator new(bytes, kLine)) {}

ScratchMemory::~ScratchMemory() {
  if (kept_) {
    blocks().free(data_);
  } else {
    ::operator delete(data_, kLine);
  }
}

}  // namespace lehr

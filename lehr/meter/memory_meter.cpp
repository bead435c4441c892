#include "lehr/meter/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "lehr/base/call_context.h"
#include "lehr/base/error.h"

namespace lehr {

struct MemoryMeter::Count {
  std::atomic<int64_t> now = 0;
  std::atomic<int64_t> peak = 0;

  void add(int64_t bytes) {
    const int64_t total = now += bytes;
    int64_t before = peak;
    while (before < total && !peak.compare_exchange_weak(before, total)) {
    }
  }
};

namespace {
using Count = MemoryMeter::Count;
const ContextSlot<const std::shared_ptr<Count>*> kMeta("memory meter");  // owned by the scope

// A meta allocation: counted until it is freed, without memory.
struct Counted {
  std::shared_ptr<Count> count;
  int64_t bytes;
};

class MetaAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const std::shared_ptr<Count>* const count = kMeta.get();
    if (count == nullptr || bytes == 0) {
      return {nullptr, at::Device(at::kMeta)};
    }
    (*count)->add(static_cast<int64_t>(bytes));
    return {nullptr, new Counted{*count, static_cast<int64_t>(bytes)}, &free, at::Device(at::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  static void free(void* context) {
    const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
    counted->count->now -= counted->bytes;
  }
};

// Replaces LibTorch's meta allocator by one that counts.
void count_meta() {
  static MetaAllocator allocator;
  static const bool set = [] {
    c10::SetAllocator(at::kMeta, &allocator, /*priority=*/1);
    return true;
  }();
  static_cast<void>(set);
}

// Maps memory to the meter that counts it, as cooperating threads free each other's tensors.
class Owners {
 public:
  void add(void* memory, int64_t bytes, const std::shared_ptr<Count>& count) {
    const std::lock_guard lock(mutex_);
    owners_[memory] = count;
    count->add(bytes);
  }
  void remove(void* memory, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (const auto found = owners_.find(memory); found != owners_.end()) {
      found->second->now -= bytes;
      owners_.erase(found);
    }
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Count>> owners_;
};

Owners& owners() {
  static Owners all;
  return all;
}

// LibTorch's CPU allocator reports all allocations and releases to this object, which exists for the profiler. Threads
// without a meter only report releases.
class CpuReports : public c10::MemoryReportingInfoBase {
 public:
  explicit CpuReports(std::shared_ptr<Count> count) : count_(std::move(count)) {}
  void reportMemoryUsage(
      void* memory, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/, c10::Device device) override {
    if (device.is_cpu() && bytes > 0 && count_) {
      owners().add(memory, bytes, count_);
    } else if (device.is_cpu() && bytes < 0) {
      owners().remove(memory, -bytes);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  std::shared_ptr<Count> count_;
};
}  // namespace

struct MemoryMeter::Scope {
  Scope(at::DeviceType device, const std::shared_ptr<Count>& count) {
    if (device == at::kMeta) {
      count_meta();
      meta.emplace(kMeta, &count);
    } else {
      reports.emplace(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<CpuReports>(count));
    }
  }

  std::optional<ContextScope<const std::shared_ptr<Count>*>> meta;
  std::optional<c10::DebugInfoGuard> reports;
};

MemoryMeter::MemoryMeter(at::DeviceType device) : count_(std::make_shared<Count>()) {
  require(
      device == at::kMeta || device == at::kCPU,
      "memory meter: expected device meta or cpu, found {}",
      c10::DeviceTypeName(device, true));
  scope_ = std::make_unique<Scope>(device, count_);
}

MemoryMeter::~MemoryMeter() = default;

struct NotCounted::Scope {
  Scope() {
    constexpr auto kState = c10::DebugInfoKind::PROFILER_STATE;
    if (dynamic_cast<CpuReports*>(c10::ThreadLocalDebugInfo::get(kState)) != nullptr) {
      reports.emplace(kState, std::make_shared<CpuReports>(nullptr));
    }
  }

  ContextScope<const std::shared_ptr<Count>*> meta{kMeta, nullptr};
  std::optional<c10::DebugInfoGuard> reports;
};

NotCounted::NotCounted() : scope_(std::make_unique<Scope>()) {}

NotCounted::~NotCounted() = default;

int64_t MemoryMeter::now() const {
  return count_->now;
}

int64_t MemoryMeter::peak() const {
  return count_->peak;
}

void MemoryMeter::reset_peak() {
  count_->peak = count_->now.load();
}

}  // namespace lehr

// A fake accelerator: CPU tensors stand for its memory, and all work that it is given is recorded and checked.
//
// ATen's operators run immediately; each counts as work of the current stream on the tensors that it reads and writes.
// Copies that the host does not wait for are made as late as the events allow, so that a caller that reads or writes
// too early gets wrong bytes and a line in problems().
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "lehr/memory/device_queues.h"
#include "test/base/happens_before.h"
#include "test/base/operator_uses.h"

namespace lehr::testing {

/// At most one exists per process. Stream 0 is the default stream.
class FakeQueues : public DeviceQueues {
 public:
  using Timeline = HappensBefore::Timeline;

  FakeQueues()
      : watch_([this](const std::string& name, const std::vector<TensorUse>& uses, bool only_allocates) {
          const std::lock_guard lock(mutex_);
          note_freed();
          only_allocates ? note_all(uses) : apply(name, uses);
        }) {
    t_stream = 0;
  }
  FakeQueues(const FakeQueues&) = delete;
  FakeQueues& operator=(const FakeQueues&) = delete;

  c10::Stream current() override { return stream_of(t_stream); }
  c10::Stream from_pool() override {
    const std::lock_guard lock(mutex_);
    return stream_of(++streams_);
  }
  void run_on(c10::Stream stream, const std::function<void()>& work) override {
    struct Restore {
      int64_t before;
      ~Restore() { t_stream = before; }
    } restore{t_stream};
    t_stream = stream.id();
    work();
  }
  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<Event>(*this); }
  at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType type) override {
    const NotWatched not_watched;
    at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(type));
    // Nobody may rely on the contents.
    std::fill_n(static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes(), '\x5a');
    const std::lock_guard lock(mutex_);
    host_.insert(memory_of(tensor));
    keep_alive_.push_back(tensor);
    pinned_bytes_ += static_cast<int64_t>(tensor.nbytes());
    return tensor;
  }
  void copy(const at::Tensor& target, const at::Tensor& source) override {
    const std::lock_guard lock(mutex_);
    const NotWatched not_watched;
    const at::NoGradGuard no_grad;
    note_freed();
    note(target);
    note(source);
    order_.read(t_stream, memory_of(source), "copy");
    order_.write(t_stream, memory_of(target), "copy");
    ++copies_;
    // Tensors of the fake itself, which note_freed() does not count.
    queue_[t_stream].push_back([this, to = target.detach(), from = source.detach()] {
      to.copy_(from);
      --waiting_[memory_of(to)];
      --waiting_[memory_of(from)];
    });
    ++waiting_[memory_of(target)];
    ++waiting_[memory_of(source)];
  }

  /// One line per problem in the order of work; empty if there is none.
  std::vector<std::string> problems() {
    const std::lock_guard lock(mutex_);
    return order_.problems();
  }
  int64_t pinned_bytes() const { return pinned_bytes_; }
  int64_t copies() const { return copies_; }
  int64_t current_id() const { return t_stream; }

  /// @name A capture, as graph functions begin and end it
  /// @{
  /// Reads and writes by a graph of memory that existed before the capture.
  struct GraphUse {
    const void* memory;
    bool writes;
  };
  void begin_capture() {
    const std::lock_guard lock(mutex_);
    if (t_stream == 0) {
      throw std::runtime_error("CUDA graphs must be captured on a non-default stream");
    }
    captured_ = {t_stream};
    capture_.emplace();
    capture_uses_.clear();
    capturing_ = std::this_thread::get_id();
    origin_ = t_stream;
    broken_.clear();
    before_capture_.clear();
    for (const auto& [memory, known] : known_) {
      before_capture_.insert(memory);
    }
  }
  /// Throws, as CUDA does, if something broke the capture or if a stream was not joined to the capturing one.
  std::vector<GraphUse> end_capture() {
    const std::lock_guard lock(mutex_);
    const std::set<int64_t> captured = std::exchange(captured_, {});
    HappensBefore order = *std::exchange(capture_, std::nullopt);
    if (!broken_.empty()) {
      throw std::runtime_error(broken_ + ": operation not permitted when stream is capturing");
    }
    for (const int64_t stream : captured) {
      if (!order.is_behind_all(origin_, stream)) {
        throw std::runtime_error(fmt::format("stream {} was not joined to the capturing one", stream));
      }
    }
    for (const std::string& problem : order.problems()) {
      order_.report("in a graph: " + problem);
    }
    return std::exchange(capture_uses_, {});
  }
  bool capturing() const { return !captured_.empty(); }
  /// The current stream runs the work of a graph.
  void replay(const std::vector<GraphUse>& uses) {
    const std::lock_guard lock(mutex_);
    flush_all_of(t_stream);
    for (const GraphUse& use : uses) {
      use.writes ? order_.write(t_stream, use.memory, "a graph") : order_.read(t_stream, use.memory, "a graph");
    }
  }
  /// Memory that a library allocates for each stream at its first use: a capture must not allocate it.
  void use_library() {
    const std::lock_guard lock(mutex_);
    if (library_.insert(t_stream).second && captured_.contains(t_stream)) {
      order_.report(fmt::format("a library asks for its memory of stream {} in a capture", t_stream));
    }
  }
  /// @}

 private:
  class Event final : public DeviceEvent {
   public:
    explicit Event(FakeQueues& queues) : queues_(queues) {}
    void record(c10::Stream stream) override {
      const std::lock_guard lock(queues_.mutex_);
      captured_ = queues_.captured_.contains(stream.id());
      clock_ = (captured_ ? *queues_.capture_ : queues_.order_).mark(stream.id());
      stream_ = stream.id();
      place_ = queues_.done_[stream_] + static_cast<int64_t>(queues_.queue_[stream_].size());
    }
    void block(c10::Stream stream) override {
      const std::lock_guard lock(queues_.mutex_);
      if (captured_ && queues_.capture_) {
        queues_.captured_.insert(stream.id());
        queues_.capture_->wait(stream.id(), clock_);
        return;
      }
      if (queues_.captured_.contains(stream.id())) {
        queues_.broken_ = "cudaStreamWaitEvent on work outside of the capture";
      }
      queues_.order_.wait(stream.id(), clock_);
      if (stream.id() != stream_) {
        queues_.queue_[stream.id()].push_back(
            [&queues = queues_, of = stream_, place = place_] { queues.flush(of, place); });
      }
    }
    void synchronize() override {
      const std::lock_guard lock(queues_.mutex_);
      if (queues_.captures_here()) {
        queues_.broken_ = "cudaEventSynchronize";
        throw std::runtime_error(queues_.broken_ + ": operation not permitted when stream is capturing");
      }
      queues_.flush(stream_, place_);
      queues_.order_.wait(HappensBefore::kHost, clock_);
    }

   private:
    FakeQueues& queues_;
    HappensBefore::Clock clock_;
    int64_t stream_ = 0;
    int64_t place_ = 0;
    bool captured_ = false;
  };

  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Timeline pool;
    bool freed = false;
  };

  static c10::Stream stream_of(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, at::Device(at::kCPU), id); }
  static const void* memory_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

  // This and all that follow are called under the lock.
  void flush(int64_t stream, int64_t until) {
    const NotWatched not_watched;
    const at::NoGradGuard no_grad;
    auto& queue = queue_[stream];
    while (done_[stream] < until && !queue.empty()) {
      const auto work = std::move(queue.front());
      queue.pop_front();
      ++done_[stream];
      work();
    }
  }
  void flush_all_of(int64_t stream) { flush(stream, INT64_MAX); }

  bool captures_here() const { return !captured_.empty() && capturing_ == std::this_thread::get_id(); }

  void note(const at::Tensor& tensor) {
    const void* const memory = memory_of(tensor);
    if (!known_.contains(memory)) {
      known_.emplace(memory, Known{tensor.storage().getWeakStorageImpl(), t_stream});
      order_.allocate(t_stream);
    }
  }
  // Memory that only pending copies still hold was freed by its owners.
  void note_freed() {
    for (auto entry = known_.begin(); entry != known_.end();) {
      Known& known = entry->second;
      const size_t owners = known.storage.use_count();  // once: another thread may free the memory meanwhile
      if (!known.freed && owners <= static_cast<size_t>(waiting_[entry->first])) {
        known.freed = true;
        order_.free(entry->first, known.pool);
      }
      if (owners == 0) {
        host_.erase(entry->first);
        waiting_.erase(entry->first);
        entry = known_.erase(entry);
      } else {
        ++entry;
      }
    }
  }

  bool used_by_device(const void* memory) const {
    return !host_.contains(memory) && (order_.touched(memory) || (capture_ && capture_->touched(memory)));
  }

  void note_all(const std::vector<TensorUse>& uses) {
    for (const TensorUse& use : uses) {
      note(use.tensor);
    }
  }
  void apply(const std::string& name, const std::vector<TensorUse>& uses) {
    std::vector<std::pair<const void*, bool>> memories;  // and whether each is written
    bool any_host = name == "aten::_local_scalar_dense";
    bool any_device = false;
    for (const auto& [tensor, writes] : uses) {
      note(tensor);
      memories.emplace_back(memory_of(tensor), writes);
      any_host |= host_.contains(memory_of(tensor));
      any_device |= used_by_device(memory_of(tensor));
    }
    if (any_host && any_device) {  // the host waits for the stream
      if (captures_here()) {
        broken_ = name;
        return;
      }
      flush_all_of(t_stream);
      order_.wait(HappensBefore::kHost, order_.mark(t_stream));
    }
    if (any_host) {
      for (const auto& [memory, writes] : memories) {
        if (!order_.touched(memory)) {
          host_.insert(memory);  // only the host has used it
        }
        access(order_, HappensBefore::kHost, memory, name, writes);
      }
      return;
    }
    flush_all_of(t_stream);
    const bool in_graph = captured_.contains(t_stream);
    if (captures_here() && !in_graph) {
      order_.report(fmt::format("{} runs on stream {} beside a capture that it is not part of", name, t_stream));
    }
    for (const auto& [memory, writes] : memories) {
      access(in_graph ? *capture_ : order_, t_stream, memory, name, writes);
      if (in_graph && before_capture_.contains(memory)) {
        capture_uses_.push_back({memory, writes});
      }
    }
  }
  static void access(HappensBefore& order, Timeline by, const void* memory, const std::string& what, bool writes) {
    writes ? order.write(by, memory, what) : order.read(by, memory, what);
  }

  static inline thread_local int64_t t_stream = 0;

  std::recursive_mutex mutex_;
  HappensBefore order_;
  int64_t streams_ = 0;
  int64_t pinned_bytes_ = 0;
  int64_t copies_ = 0;
  std::map<int64_t, std::deque<std::function<void()>>> queue_;  // pending copies
  std::map<int64_t, int64_t> done_;
  std::map<const void*, int64_t> waiting_;  // number of pending copies per memory
  std::map<const void*, Known> known_;
  std::set<const void*> host_;
  std::vector<at::Tensor> keep_alive_;  // as LibTorch's allocator keeps pinned memory
  std::set<int64_t> captured_;          // streams of the running capture
  std::optional<HappensBefore> capture_;
  std::vector<GraphUse> capture_uses_;
  std::set<const void*> before_capture_;
  std::thread::id capturing_;
  int64_t origin_ = 0;
  std::string broken_;  // the name of the operator that broke the capture
  std::set<int64_t> library_;
  const OperatorUses watch_;
};

}  // namespace lehr::testing

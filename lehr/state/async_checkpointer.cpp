#include "lehr/state/async_checkpointer.h"

#include <chrono>
#include <exception>
#include <system_error>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Whether a buffer of an earlier save can take this tensor.
bool fits(const at::Tensor& buffer, const at::Tensor& tensor, at::ScalarType type) {
  return buffer.defined() && buffer.scalar_type() == type && buffer.sizes() == tensor.sizes() &&
         buffer.is_pinned() == tensor.is_cuda();
}
}  // namespace

AsyncCheckpointer::AsyncCheckpointer(CheckpointStore store, int64_t keep_latest)
    : store_(std::move(store)), keep_latest_(keep_latest) {
  require(keep_latest >= 0, "checkpoints to keep: expected 0 (all) or more, found {}", keep_latest);
}

AsyncCheckpointer::~AsyncCheckpointer() {
  wait();
}

void AsyncCheckpointer::save(const CheckpointContents& contents) {
  check(contents);
  const auto start = std::chrono::steady_clock::now();
  wait();
  current_ = {
      .step = contents.step, .path = store_.path_of(contents.step), .num_bytes = num_bytes(contents), .error = ""};
  written_ = false;
  try {
    CheckpointContents staged = copy(contents);
    current_.copy_seconds = seconds_since(start);
    thread_ = std::thread([this, staged = std::move(staged)] { write(staged); });
  } catch (const std::exception& error) {  // no memory for the copy, no thread
    current_.error = error.what();
    results_.push_back(std::move(current_));
  }
}

CheckpointContents AsyncCheckpointer::copy(const CheckpointContents& contents) {
  const at::NoGradGuard no_grad;
  CheckpointContents staged = contents;
  auto buffers = std::move(staging_);
  staging_.clear();
  for (WeightSet& set : staged.weights) {
    for (auto& [name, tensor] : set.tensors) {
      const auto type = set.dtype && tensor.is_floating_point() ? *set.dtype : tensor.scalar_type();
      at::Tensor buffer = std::move(buffers[{set.stem, name}]);
      if (!fits(buffer, tensor, type)) {
        const auto options = at::TensorOptions().dtype(type).device(at::kCPU).pinned_memory(tensor.is_cuda());
        buffer = at::empty(tensor.sizes(), options);
      }
      buffer.copy_(tensor.detach());
      staging_[{set.stem, name}] = buffer;
      tensor = std::move(buffer);
    }
  }
  return staged;
}

void AsyncCheckpointer::write(const CheckpointContents& contents) {
  const auto start = std::chrono::steady_clock::now();
  try {
    write_checkpoint(store_, contents);
    if (keep_latest_ > 0) {
      store_.keep_latest(keep_latest_, contents.step);
    }
  } catch (const std::exception& error) {
    current_.error = error.what();
  }
  current_.write_seconds = seconds_since(start);
  written_ = true;
}

std::optional<SaveResult> AsyncCheckpointer::poll() {
  if (written_) {
    wait();
  }
  if (results_.empty()) {
    return std::nullopt;
  }
  SaveResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void AsyncCheckpointer::wait() {
  if (thread_.joinable()) {
    thread_.join();
    results_.push_back(std::move(current_));
    current_ = {};
  }
}

}  // namespace lehr::state

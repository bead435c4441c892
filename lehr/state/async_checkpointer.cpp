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
         buffer.is_pinned() == !tensor.is_cpu();
}
}  // namespace

AsyncCheckpointer::AsyncCheckpointer(
    CheckpointStore store, int64_t keep_latest, std::shared_ptr<Coordinator> coordinator)
    : store_(std::move(store)),
      keep_latest_(keep_latest),
      coordinator_(coordinator ? std::move(coordinator) : std::make_shared<OneRank>()) {
  require(keep_latest >= 0, "checkpoints to keep: expected 0 (all) or more, found {}", keep_latest);
}

AsyncCheckpointer::~AsyncCheckpointer() {
  if (std::uncaught_exceptions() > 0) {
    // The others wait for this rank in their collectives until it has ended and says why.
    coordinator_->hurry(std::chrono::seconds(5));
  }
  wait();
}

void AsyncCheckpointer::save(const CheckpointContents& contents) {
  if (coordinator_->world_size() == 1) {
    check(contents);  // else the writers do, together: a rank that left here would be waited for
  }
  const auto start = std::chrono::steady_clock::now();
  wait();
  current_ = {.step = contents.step, .path = store_.path_of(contents.step), .num_bytes = 0, .error = ""};
  written_ = false;
  CheckpointContents staged{.step = contents.step, .weights = {}};
  std::string failure;
  try {
    current_.num_bytes = num_bytes(contents);
    staged = copy(contents);
  } catch (const std::exception& error) {  // no memory for the copy
    failure = error.what();
  }
  current_.copy_seconds = seconds_since(start);
  try {
    thread_ = std::thread([this, staged = std::move(staged), failure] { write(staged, failure); });
  } catch (const std::exception& error) {  // no thread: the other ranks must know
    write(CheckpointContents{.step = contents.step, .weights = {}}, error.what());
    results_.push_back(std::move(current_));
    current_ = {};
  }
}

CheckpointContents AsyncCheckpointer::copy(const CheckpointContents& contents) {
  const at::NoGradGuard no_grad;
  CheckpointContents staged = contents;
  bool any_copies = false;
  auto buffers = std::move(staging_);
  staging_.clear();
  const auto stage = [&](const std::pair<std::string, std::string>& key, at::Tensor& tensor, at::ScalarType type) {
    at::Tensor buffer = std::move(buffers[key]);
    if (!fits(buffer, tensor, type)) {
      const auto options = at::TensorOptions().dtype(type).device(at::kCPU).pinned_memory(!tensor.is_cpu());
      buffer = at::empty(tensor.sizes(), options);
    }
    if (tensor.is_cpu()) {
      buffer.copy_(tensor.detach());
    } else {
      if (!copies_) {
        copies_.emplace(tensor.device());
      }
      if (!std::exchange(any_copies, true)) {
        copies_->follow();
      }
      copies_->run([&] { buffer.copy_(tensor.detach(), /*non_blocking=*/true); });
    }
    staging_[key] = buffer;
    tensor = std::move(buffer);
  };
  for (WeightSet& set : staged.weights) {
    for (auto& [name, tensor] : set.tensors) {
      stage({set.stem, name}, tensor, set.dtype && tensor.is_floating_point() ? *set.dtype : tensor.scalar_type());
    }
    for (TensorPart& part : set.parts) {
      stage({set.stem, part.name + lehr::describe(part.box)}, part.tensor, part.tensor.scalar_type());
    }
  }
  if (any_copies) {
    copies_->join();
  }
  return staged;
}

void AsyncCheckpointer::write(const CheckpointContents& contents, const std::string& failure) {
  const auto start = std::chrono::steady_clock::now();
  try {
    if (copies_) {
      copies_->wait();
    }
    write_checkpoint(store_, contents, *coordinator_, failure);
    if (keep_latest_ > 0) {
      coordinator_->from_main("save tidy", [&] {
        store_.keep_latest(keep_latest_, contents.step);
        return std::string();
      });
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

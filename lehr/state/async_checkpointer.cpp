#include "lehr/state/async_checkpointer.h"

#include <chrono>
#include <exception>
#include <system_error>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"

namespace lehr::state {

namespace {
constexpr auto kCopies = "checkpoint: the copies from a device";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// True if a buffer of an earlier save fits this tensor.
bool fits(const at::Tensor& buffer, const at::Tensor& tensor, at::ScalarType type) {
  return buffer.defined() && buffer.scalar_type() == type && buffer.sizes() == tensor.sizes();
}
}  // namespace

AsyncCheckpointer::AsyncCheckpointer(
    CheckpointStore store,
    int64_t keep_latest,
    std::shared_ptr<Coordinator> coordinator,
    QueuesOf queues_of,
    int64_t pinned_bytes,
    WriteContents write)
    : store_(std::move(store)),
      keep_latest_(keep_latest),
      coordinator_(coordinator ? std::move(coordinator) : std::make_shared<OneRank>()),
      write_(
          write ? std::move(write)
                : [this](const auto& contents, const auto& failure) { return write_to_store(contents, failure); }),
      queues_of_(std::move(queues_of)),
      pinned_bytes_(pinned_bytes) {
  require(keep_latest >= 0, "checkpoints to keep: expected 0 (all) or more, found {}", keep_latest);
}

AsyncCheckpointer::~AsyncCheckpointer() {
  if (std::uncaught_exceptions() > 0) {
    // The other ranks wait in their collectives until this rank has ended and reported the reason.
    coordinator_->hurry(std::chrono::seconds(5));
  }
  wait();
}

void AsyncCheckpointer::save(const CheckpointContents& contents) {
  if (coordinator_->world_size() == 1) {
    check(contents);  // with several ranks the writing threads check, together
  }
  const auto start = std::chrono::steady_clock::now();
  wait();
  current_ = {.step = contents.step, .path = store_.path_of(contents.step), .num_bytes = 0};
  written_ = false;
  Staged staged{.contents = {.step = contents.step, .weights = {}}, .moves = {}};
  std::string failure;
  try {
    current_.num_bytes = num_bytes(contents);
    staged = stage(contents);
  } catch (const std::exception& error) {  // out of memory for the copy
    failure = error.what();
  }
  current_.copy_seconds = seconds_since(start);
  copied_ = staged.moves.empty();
  try {
    thread_ = std::thread([this, staged = std::move(staged), failure]() mutable {
      const std::string problem = failure.empty() ? copy_from_device(std::move(staged.moves)) : failure;
      write(staged.contents, problem);
    });
  } catch (const std::exception& error) {  // the thread could not be started: the other ranks must be told
    copied_ = true;
    write(CheckpointContents{.step = contents.step, .weights = {}}, error.what());
    results_.push_back(std::move(current_));
    current_ = {};
  }
}

// Allocates host memory for all tensors, and copies those of the CPU to it.
AsyncCheckpointer::Staged AsyncCheckpointer::stage(const CheckpointContents& contents) {
  const at::NoGradGuard no_grad;
  Staged staged{.contents = contents, .moves = {}};
  auto buffers = std::move(staging_);
  staging_.clear();
  const auto add = [&](const std::pair<std::string, std::string>& key, at::Tensor& tensor, at::ScalarType type) {
    at::Tensor buffer = std::move(buffers[key]);
    if (!fits(buffer, tensor, type)) {
      buffer = at::empty(tensor.sizes(), at::TensorOptions().dtype(type).device(at::kCPU));
    }
    if (auto queues = queues_of_(tensor.device())) {
      if (!copies_) {
        copies_.emplace(std::move(queues), pinned_bytes_);
      }
      staged.moves.push_back({buffer, tensor.detach()});
    } else {
      buffer.copy_(tensor.detach());
    }
    staging_[key] = buffer;
    tensor = std::move(buffer);
  };
  for (WeightSet& set : staged.contents.weights) {
    for (auto& [name, tensor] : set.tensors) {
      const at::ScalarType own = tensor.scalar_type();
      add({set.stem, name}, tensor, tensor.is_floating_point() ? set.dtype.value_or(own) : own);
    }
    for (TensorPart& part : set.parts) {
      add({set.stem, part.name + lehr::describe(part.box)}, part.tensor, part.tensor.scalar_type());
    }
  }
  if (!staged.moves.empty()) {
    value_of(copies_, kCopies).follow();
  }
  return staged;
}

// Runs on the writing thread; returns the failure, if any. Afterwards nothing reads the sources any more.
std::string AsyncCheckpointer::copy_from_device(std::vector<Move> moves) {
  std::string problem;
  try {
    for (const Move& move : moves) {
      value_of(copies_, kCopies).copy(move.target, move.source);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  try {
    if (!moves.empty()) {
      value_of(copies_, kCopies).finish();
    }
  } catch (const std::exception& error) {
    problem = problem.empty() ? error.what() : problem;
  }
  moves.clear();
  copied_ = true;
  copied_.notify_all();
  return problem;
}

void AsyncCheckpointer::wait_copied() {
  if (!copied_) {
    const auto start = std::chrono::steady_clock::now();
    copied_.wait(false);
    current_.copy_seconds += seconds_since(start);
  }
}

void AsyncCheckpointer::write(const CheckpointContents& contents, const std::string& failure) {
  const auto start = std::chrono::steady_clock::now();
  try {
    current_.untidy = write_(contents, failure);
  } catch (const std::exception& error) {
    current_.error = error.what();
  }
  current_.write_seconds = seconds_since(start);
  written_ = true;
}

std::string AsyncCheckpointer::write_to_store(const CheckpointContents& contents, const std::string& failure) {
  write_checkpoint(store_, contents, *coordinator_, failure);
  return keep_latest_ == 0
             ? ""
             : coordinator_->from_main("save tidy", [&] { return store_.keep_latest(keep_latest_, contents.step); });
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

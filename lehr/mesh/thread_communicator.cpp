#include "lehr/mesh/thread_communicator.h"

#include "lehr/base/error.h"

namespace lehr::mesh {

ThreadCommunicator::ThreadCommunicator(
    std::string name, int64_t size, std::shared_ptr<ThreadAbort> abort, std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      size_(size),
      abort_(std::move(abort)),
      timeout_(timeout),
      slots_(static_cast<size_t>(size)) {}

void ThreadCommunicator::meet(int64_t rank, Slot offer) {
  slots_[static_cast<size_t>(rank)] = std::move(offer);
  wait_for_all();
  const std::string& mine = slots_[static_cast<size_t>(rank)].call;
  for (size_t other = 0; other < slots_.size(); ++other) {
    if (slots_[other].call != mine) {
      fail_runtime(
          "axis {}: its rank {} calls {}, its rank {} calls {}; every member must call the same collectives in the "
          "same order",
          name_,
          rank,
          mine,
          other,
          slots_[other].call);
    }
  }
}

bool ThreadCommunicator::aborted() const {
  const std::lock_guard guard(abort_->mutex);
  return abort_->aborted;
}

void ThreadCommunicator::fail_aborted() const {
  const std::lock_guard guard(abort_->mutex);
  fail_runtime("another rank failed: {}", abort_->message);
}

void ThreadCommunicator::wait_for_all() {
  std::unique_lock lock(mutex_);
  if (aborted()) {
    fail_aborted();
  }
  const uint64_t round = round_;
  if (++waiting_ == size_) {
    waiting_ = 0;
    ++round_;
    all_here_.notify_all();
    return;
  }
  const bool came = all_here_.wait_for(lock, timeout_, [&] { return round_ != round || aborted(); });
  if (round_ != round) {
    return;
  }
  if (came) {
    fail_aborted();
  }
  fail_runtime(
      "axis {}: {} of {} ranks arrived within {} ms", name_, waiting_, size_, static_cast<int64_t>(timeout_.count()));
}

void ThreadCommunicator::post(int64_t from, int64_t to, at::Tensor tensor) {
  const std::lock_guard lock(mutex_);
  Mailbox& letters = mailboxes_[{from, to}];
  letters.waiting.emplace(letters.posted++, std::move(tensor));
  all_here_.notify_all();
}

int64_t ThreadCommunicator::expect(int64_t from, int64_t to) {
  const std::lock_guard lock(mutex_);
  return mailboxes_[{from, to}].expected++;
}

at::Tensor ThreadCommunicator::take(int64_t from, int64_t to, int64_t number) {
  std::unique_lock lock(mutex_);
  auto& waiting = mailboxes_[{from, to}].waiting;
  const bool came = all_here_.wait_for(lock, timeout_, [&] { return waiting.contains(number) || aborted(); });
  const auto found = waiting.find(number);
  if (found == waiting.end()) {
    if (came) {
      fail_aborted();
    }
    fail_runtime(
        "axis {}: its rank {} received nothing from rank {} within {} ms",
        name_,
        to,
        from,
        static_cast<int64_t>(timeout_.count()));
  }
  at::Tensor tensor = std::move(found->second);
  waiting.erase(found);
  return tensor;
}

void ThreadCommunicator::wake() {
  const std::lock_guard lock(mutex_);
  all_here_.notify_all();
}

}  // namespace lehr::mesh

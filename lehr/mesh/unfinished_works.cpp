#include "lehr/mesh/unfinished_works.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <exception>
#include <set>

#include "lehr/mesh/exception_text.h"

namespace lehr::mesh {

bool is_done(c10d::Work& work) {
  if (!work.isCompleted()) {
    return false;
  }
  if (const std::exception_ptr problem = work.exception()) {
    std::rethrow_exception(problem);
  }
  return true;
}

void UnfinishedWorks::add(UnfinishedWork work) {
  const std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
}

std::optional<UnfinishedWork> UnfinishedWorks::oldest() const {
  const std::lock_guard lock(mutex_);
  return works_.empty() ? std::nullopt : std::optional(works_.front());
}

std::optional<UnfinishedWorks::Failed> UnfinishedWorks::forget_done() {
  std::unique_lock lock(mutex_);
  const std::vector<UnfinishedWork> asked(works_.begin(), works_.end());
  lock.unlock();  // while the device is asked
  std::set<const c10d::Work*> done;
  std::optional<Failed> failed;
  for (const UnfinishedWork& one : asked) {
    try {
      if (is_done(*one.work)) {
        done.insert(one.work.get());
      }
    } catch (const std::exception& problem) {
      if (!failed) {
        failed = Failed{.work = one, .problem = exception_text(problem)};
      }
    }
  }
  lock.lock();
  std::erase_if(works_, [&](const UnfinishedWork& one) { return done.contains(one.work.get()); });
  lock.unlock();  // before `asked` releases the works
  return failed;
}

}  // namespace lehr::mesh

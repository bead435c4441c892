#include "lehr/mesh/bounded_store.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "lehr/mesh/exception_text.h"

namespace lehr::mesh {

namespace {
// Limit for a connection, and for reading the value of an existing key.
constexpr std::chrono::seconds kConnectTime{2};

bool within_process(c10d::Store& store) {
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) {
    return within_process(*prefixed->getUnderlyingNonPrefixStore());
  }
  return dynamic_cast<c10d::HashStore*>(&store) != nullptr;
}
}  // namespace

struct BoundedStore::Call {
  std::function<void(c10d::Store&)> work;
  bool even_late = false;
  bool given_up = false;
  bool done = false;
  std::exception_ptr problem;
};

// Shared with the thread, which may outlive the object in a call that is never answered.
struct BoundedStore::State {
  std::mutex mutex;
  std::condition_variable news;
  c10::intrusive_ptr<c10d::Store> store;  // used by the thread only
  std::deque<std::shared_ptr<Call>> calls;
  bool ending = false;
  bool ended = false;
};

BoundedStore::BoundedStore(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit)
    : state_(std::make_shared<State>()), limit_(limit) {
  state_->store = store->clone();
  if (!within_process(*store)) {  // a store within the process clones to itself, or shares its state
    state_->store->setTimeout(kConnectTime);
  }
  std::thread([state = state_] { serve(state); }).detach();
}

void BoundedStore::close() {
  const std::lock_guard lock(state_->mutex);
  state_->ending = true;
  state_->news.notify_all();
}

BoundedStore::~BoundedStore() {
  close();
  std::unique_lock lock(state_->mutex);
  state_->news.wait_for(lock, std::chrono::milliseconds(200), [this] { return state_->ended; });
}

void BoundedStore::serve(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->news.wait(lock, [&] { return state->ending || !state->calls.empty(); });
    if (state->ending) {
      break;
    }
    const std::shared_ptr<Call> call = state->calls.front();
    state->calls.pop_front();
    if (call->given_up && !call->even_late) {
      continue;
    }
    lock.unlock();
    std::exception_ptr problem;
    try {
      call->work(*state->store);
    } catch (const std::exception&) {
      // The connection is replaced: a delayed answer to this call would be taken for the answer to the next one.
      try {
        state->store = state->store->clone();
        call->work(*state->store);
      } catch (const std::exception&) {
        problem = std::current_exception();
      }
    }
    lock.lock();
    call->problem = problem;
    call->done = true;
    state->news.notify_all();
  }
  state->store.reset();
  state->ended = true;
  state->news.notify_all();
}

void BoundedStore::run(std::function<void(c10d::Store&)> work, bool even_late) {
  const auto call = std::make_shared<Call>();
  call->work = std::move(work);
  call->even_late = even_late;
  std::unique_lock lock(state_->mutex);
  state_->calls.push_back(call);
  state_->news.notify_all();
  state_->news.wait_for(lock, limit_, [&] { return call->done || state_->ending; });
  if (!call->done) {
    call->given_up = true;
    throw StoreTimeout(fmt::format(
        "the ranks' store has not answered for {}: the process that holds it (rank 0 or the launcher) has ended or "
        "hangs",
        seconds_text(limit_)));
  }
  if (call->problem) {
    std::rethrow_exception(call->problem);
  }
}

void BoundedStore::run(std::function<void(c10d::Store&)> work) {
  run(std::move(work), true);
}

// Results are shared with the call, which may be answered after the caller has given up.
bool BoundedStore::check(const std::string& key) {
  const auto found = std::make_shared<bool>(false);
  run([key, found](c10d::Store& store) { *found = store.check({key}); }, false);
  return *found;
}

std::string BoundedStore::get(const std::string& key) {
  const auto value = std::make_shared<std::string>();
  run([key, value](c10d::Store& store) { *value = store.get_to_str(key); }, false);
  return *value;
}

void BoundedStore::set(const std::string& key, const std::string& value) {
  run([key, value](c10d::Store& store) { store.set(key, value); }, false);
}

int64_t BoundedStore::add(const std::string& key, int64_t value) {
  const auto sum = std::make_shared<int64_t>(0);
  run([=](c10d::Store& store) { *sum = store.add(key, value); }, false);
  return *sum;
}

}  // namespace lehr::mesh

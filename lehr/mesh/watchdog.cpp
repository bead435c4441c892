#include "lehr/mesh/watchdog.h"

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/rank_reports.h"

namespace lehr::mesh {

namespace {
using Clock = CollectiveRecord::Clock;
using std::chrono::milliseconds;

// Keys of the store. The first failure is kept; the alarm asks every rank to report its state.
const std::string kFailure = "failure";
const std::string kHeard = "heard";  // ranks that know of the failure and did not cause it
const std::string kGone = "gone";
}  // namespace

void publish_failure(c10d::Store& store, int64_t rank, const std::string& message) {
  store.compareSet(kFailure, std::string(), fmt::format("{}\n{}", rank, message));
  store.add(kAlarm, 1);
}

Watchdog::Watchdog(const c10::intrusive_ptr<c10d::Store>& store, Options options)
    : store_(store, options.answer_time), options_(std::move(options)) {
  coordinates_ = [](int64_t) { return std::string(); };
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  store_.close();
  thread_.join();
}

void Watchdog::set_coordinates(std::function<std::string(int64_t rank)> coordinates) {
  const std::lock_guard lock(mutex_);
  coordinates_ = std::move(coordinates);
}

std::string Watchdog::called(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  const std::string place = coordinates_(rank);
  return place.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, place);
}

// All ranks of a large world poll one store.
milliseconds Watchdog::interval() const {
  return milliseconds(300 + options_.world_size);
}

void Watchdog::watch() {
  bool alarmed = false;
  auto reached = Clock::now();  // the store, or a machine that keeps a connection to it
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval(), [this] { return ending_; })) {
    lock.unlock();
    look_at_device();
    look_at_clock();
    try {
      answer_requests();
      alarmed = alarmed || store_.check(kAlarm);
      if (alarmed) {
        publish_where();
        look_for_failure();
      }
      reached = Clock::now();
    } catch (const StoreTimeout&) {
      // The store is busy, or its machine hangs: collectives continue, and fail if they cannot.
      reached = Clock::now();
    } catch (const std::exception&) {
      if (Clock::now() - reached >= options_.store_patience) {
        set_failure(kStoreGone, -1);
      }
    }
    lock.lock();
  }
}

// The ring may have overwritten the entry; its time then counts from now.
CollectiveRecord Watchdog::record_of(int64_t ticket) const {
  const auto found = log_.find(ticket);
  return found ? *found : CollectiveRecord{.name = "a collective", .axis = "?", .start = Clock::now()};
}

void Watchdog::look_at_device() {
  std::optional<UnfinishedWorks::Failed> bad = on_device_.forget_done();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      return;  // connections are broken, and so is the device's pending work over them
    }
  }
  const auto oldest = on_device_.oldest();
  if (!bad && oldest && options_.timeout.count() > 0 && Clock::now() - oldest->record.start >= options_.timeout) {
    bad = {.work = *oldest, .problem = "the device has not done it"};
  }
  if (!bad) {
    return;
  }
  try {
    explain(bad->work.record, bad->work.ranks, bad->problem, /*of_device=*/true);
  } catch (const PeerFailure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_.emplace(failure);
    }
  }
}

std::chrono::nanoseconds Watchdog::clock_offset() const {
  return options_.time_of_day().time_since_epoch() - Clock::now().time_since_epoch();
}

// While an object exists, the watchdog's thread checks the clock and may end the wait.
class Watchdog::Waiting {
 public:
  explicit Waiting(Watchdog& watchdog) : watchdog_(watchdog) {
    const std::lock_guard lock(watchdog.mutex_);
    watchdog.waits_since_ = Clock::now();
    watchdog.latest_offset_ = watchdog.clock_offset();
    watchdog.set_back_ = false;
    watchdog.is_overdue_ = false;
  }
  ~Waiting() {
    const std::lock_guard lock(watchdog_.mutex_);
    watchdog_.message_.reset();
    watchdog_.waits_since_.reset();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Watchdog& watchdog_;
};

// PyTorch's wheels wait until a time of day, because they are built for a glibc without pthread_cond_clockwait. A wait
// that begins before somebody sets the clock back by an hour would last an hour longer, even for a slice of 250 ms.
void Watchdog::look_at_clock() {
  constexpr std::chrono::seconds kAdjustment{1};  // smaller ones do no harm
  std::unique_lock lock(mutex_);
  if (!waits_since_ || options_.timeout.count() == 0) {
    return;
  }
  const auto offset = clock_offset();
  set_back_ = set_back_ || offset < latest_offset_ - kAdjustment;
  latest_offset_ = std::max(latest_offset_, offset);
  if (!set_back_ || Clock::now() - *waits_since_ < options_.timeout) {
    return;
  }
  waits_since_.reset();
  const auto message = message_;
  lock.unlock();
  if (message) {
    message->abort();
  } else {
    is_overdue_ = true;
    options_.disconnect();
  }
}

void Watchdog::set_doing(std::string doing) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(doing);
}

std::string Watchdog::where() {
  std::string word = log_.where();
  on_device_.forget_done();
  if (const auto oldest = on_device_.oldest()) {
    word += "; its device has not done " + oldest->record.describe();
  }
  const std::lock_guard lock(mutex_);
  return doing_.empty() ? word : word + ", in " + doing_;
}

void Watchdog::answer_requests() {
  while (store_.check(request_key(answered_ + 1))) {
    ++answered_;
    store_.set(answer_key(answered_, options_.rank), where());
  }
}

void Watchdog::publish_where() {
  std::string word = where();
  for (const GroupCount& group : log_.groups()) {
    word +=
        fmt::format("\n{} {} {} {}", group.key, group.started, group.started > 0 ? group.last : "-", group.last_bytes);
  }
  store_.set(where_key(options_.rank), word);
}

void Watchdog::look_for_failure() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      return;
    }
  }
  if (!store_.check(kFailure)) {
    return;
  }
  const std::string text = store_.get(kFailure);
  const size_t line = text.find('\n');
  const int64_t culprit = std::stoll(text.substr(0, line));
  const std::string message = text.substr(line + 1);
  if (culprit == options_.rank) {
    return;
  }
  const std::string full = culprit < 0 ? message : fmt::format("{} failed: {}", called(culprit), message);
  if (!set_failure(full, culprit)) {
    return;
  }
  if (on_device_.oldest()) {
    options_.disconnect();  // the host may be waiting for the device, and reaches no collective that would notice
  }
  store_.add(kHeard, 1);
}

// Returns false if there was a failure already, which is kept.
bool Watchdog::set_failure(const std::string& message, int64_t culprit) {
  std::unique_lock lock(mutex_);
  if (failure_) {
    return false;
  }
  failure_.emplace(message, culprit);
  const auto message_under_way = message_;
  lock.unlock();  // an abort may wait for a thread that wants the lock
  if (message_under_way) {
    message_under_way->abort();
  }
  return true;
}

void Watchdog::check() const {
  std::unique_lock lock(mutex_);
  if (failure_) {
    const PeerFailure failure = *failure_;
    lock.unlock();  // as above
    options_.disconnect();
    throw PeerFailure(failure);
  }
}

// Registers a message's work, which a failure then aborts.
void Watchdog::expect_message(const c10::intrusive_ptr<c10d::Work>& work) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      message_ = work;
      return;
    }
  }
  check();  // nothing else would end the wait
}

void Watchdog::wait(
    const c10::intrusive_ptr<c10d::Work>& work, int64_t ticket, bool message, const std::vector<int64_t>& ranks) {
  log_.waits(ticket);
  try {
    const Waiting waiting(*this);
    if (message) {
      expect_message(work);
      // In one piece: Gloo closes all connections of the group when a wait times out.
      if (!work->wait(options_.timeout)) {
        fail_runtime("it was aborted");
      }
    } else {
      // Waits in slices, to notice that another rank has failed. A slice that times out throws, as a failure does.
      for (bool done = false; !done;) {
        check();
        if (is_overdue_) {
          fail_runtime("the time limit passed, but the clock was set back");
        }
        try {
          done = work->wait(milliseconds(250));
        } catch (const std::exception&) {
          if (work->isCompleted()) {
            if (!work->isSuccess()) {
              throw;
            }
            done = true;
          }
        }
      }
    }
  } catch (const PeerFailure&) {
    throw;
  } catch (const std::exception& problem) {
    explain(ticket, ranks, problem.what());
  }
  log_.end(ticket);
  bool done = false;
  try {
    done = is_done(*work);
  } catch (const std::exception& problem) {
    explain(record_of(ticket), ranks, exception_text(problem), /*of_device=*/true);
  }
  if (!done) {
    on_device_.add({.work = work, .record = record_of(ticket), .ranks = ranks});
  }
}

void Watchdog::fail(const std::string& message) noexcept {
  failed_ = true;
  try {
    store_.run([rank = options_.rank, message](c10d::Store& store) { publish_failure(store, rank, message); });
  } catch (const std::exception&) {
    // No rank is left to tell.
  }
  options_.disconnect();
}

void Watchdog::wait_for_count(const std::string& key, int64_t count, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (store_.add(key, 0) < count && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void Watchdog::shut_down(milliseconds limit) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;  // The state reported last stays.
    }
    wake_.notify_all();
    store_.set(where_key(options_.rank), "has ended without an error");
    store_.add(kGone, 1);
    wait_for_count(kGone, limit.count() > 0 ? options_.world_size : 0, limit);
  } catch (const std::exception&) {
    // The store has ended first.
  }
}

void Watchdog::wait_until_peers_know(milliseconds limit) noexcept {
  try {
    wait_for_count(kHeard, options_.world_size - 1, limit);
  } catch (const std::exception&) {
    // The store has ended first.
  }
}

}  // namespace lehr::mesh

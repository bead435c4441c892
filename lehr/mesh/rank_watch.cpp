#include "lehr/mesh/rank_watch.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <sstream>

#include "lehr/mesh/exception_text.h"

namespace lehr::mesh {

namespace {
using Clock = CollectiveRecord::Clock;
using std::chrono::milliseconds;

// Keys of the store. The first failure stays; the alarm asks every rank to say where it is.
const std::string kFailure = "failure";
const std::string kAlarm = "alarm";
const std::string kHeard = "heard";  // ranks that know of the failure and did not cause it
const std::string kGone = "gone";
const std::string kStoreGone = "what keeps the ranks' store, rank 0 or the launcher, is gone";
constexpr size_t kMostNamed = 8;  // ranks in one message

std::string where_key(int64_t rank) {
  return fmt::format("where/{}", rank);
}

}  // namespace

void publish_failure(c10d::Store& store, int64_t rank, const std::string& message) {
  store.compareSet(kFailure, std::string(), fmt::format("{}\n{}", rank, message));
  store.add(kAlarm, 1);
}

RankWatch::RankWatch(const c10::intrusive_ptr<c10d::Store>& store, Options options)
    : store_(store, options.answer_time), options_(std::move(options)) {
  coordinates_ = [](int64_t) { return std::string(); };
  thread_ = std::thread([this] { watch(); });
}

RankWatch::~RankWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  store_.close();
  thread_.join();
}

void RankWatch::set_coordinates(std::function<std::string(int64_t rank)> coordinates) {
  const std::lock_guard lock(mutex_);
  coordinates_ = std::move(coordinates);
}

std::string RankWatch::called(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  const std::string place = coordinates_(rank);
  return place.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, place);
}

void RankWatch::watch() {
  // All ranks of a large world ask one store.
  const milliseconds interval(300 + options_.world_size);
  bool alarmed = false;
  auto reached = Clock::now();  // the store, or a machine that keeps a connection to it
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval, [this] { return ending_; })) {
    lock.unlock();
    look_at_device();
    try {
      alarmed = alarmed || store_.check(kAlarm);
      if (alarmed) {
        publish_where();
        look_for_failure();
      }
      reached = Clock::now();
    } catch (const StoreSilence&) {
      // Busy, or its machine hangs: collectives go on, and tell if they do not.
      reached = Clock::now();
    } catch (const std::exception&) {
      if (Clock::now() - reached >= options_.store_patience) {
        set_failure(kStoreGone, -1);
      }
    }
    lock.lock();
  }
}

// The log forgets what hundreds of others came after; then its time counts from now.
CollectiveRecord RankWatch::record_of(int64_t ticket) const {
  const auto found = log_.find(ticket);
  return found ? *found : CollectiveRecord{.name = "a collective", .axis = "?", .start = Clock::now()};
}

void RankWatch::leave_to_device(
    const c10::intrusive_ptr<c10d::Work>& work, int64_t ticket, const std::vector<int64_t>& ranks) {
  const CollectiveRecord record = record_of(ticket);
  const std::lock_guard lock(mutex_);
  // The thread comes by now and then; a step has many collectives.
  while (!on_device_.empty() && on_device_.front().work->isCompleted()) {
    on_device_.pop_front();
  }
  on_device_.push_back({.work = work, .record = record, .ranks = ranks});
}

void RankWatch::look_at_device() {
  std::optional<OnDevice> late;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(on_device_, [](const OnDevice& one) { return one.work->isCompleted(); });
    const bool limited = options_.timeout.count() > 0 && !failure_;
    if (limited && !on_device_.empty() && Clock::now() - on_device_.front().record.start >= options_.timeout) {
      late = on_device_.front();
    }
  }
  if (!late) {
    return;
  }
  try {
    explain(late->record, late->ranks, "the device has not done it");
  } catch (const PeerFailure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_.emplace(failure);
    }
  }
}

void RankWatch::publish_where() {
  std::string word = log_.where();
  {
    const std::lock_guard lock(mutex_);
    if (!on_device_.empty()) {
      word += "; its device has not done " + on_device_.front().record.describe();
    }
  }
  for (const GroupCount& group : log_.groups()) {
    word +=
        fmt::format("\n{} {} {} {}", group.key, group.started, group.started > 0 ? group.last : "-", group.last_bytes);
  }
  store_.set(where_key(options_.rank), word);
}

void RankWatch::look_for_failure() {
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
  if (device_waits()) {
    options_.disconnect();  // the host may wait for the device, and comes to no collective meanwhile
  }
  store_.add(kHeard, 1);
}

bool RankWatch::device_waits() const {
  const std::lock_guard lock(mutex_);
  return !on_device_.empty();
}

// The first one stays.
bool RankWatch::set_failure(const std::string& message, int64_t culprit) {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    return false;
  }
  failure_.emplace(message, culprit);
  if (message_) {
    message_->abort();
  }
  return true;
}

void RankWatch::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    options_.disconnect();
    throw PeerFailure(*failure_);
  }
}

void RankWatch::wait(
    const c10::intrusive_ptr<c10d::Work>& work, int64_t ticket, bool message, const std::vector<int64_t>& ranks) {
  log_.waits(ticket);
  try {
    if (message) {
      {
        const std::lock_guard lock(mutex_);
        if (failure_) {  // nothing would end the wait any more
          options_.disconnect();
          throw PeerFailure(*failure_);
        }
        message_ = work;
      }
      const bool done = work->wait();
      {
        const std::lock_guard lock(mutex_);
        message_.reset();
      }
      if (!done) {
        fail_runtime("it was broken off");
      }
    } else {
      // In slices, to notice that another rank has failed. A slice that is over throws, as a failure does.
      for (bool done = false; !done;) {
        check();
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
    {
      const std::lock_guard lock(mutex_);
      message_.reset();
    }
    explain(ticket, ranks, problem.what());
  }
  log_.end(ticket);
  if (!work->isCompleted()) {
    leave_to_device(work, ticket, ranks);
  }
}

// What a rank did instead of coming to a collective, by its word; nothing if it came.
std::optional<std::string> RankWatch::absence(
    const std::string& word, const std::string& group_key, const CollectiveRecord& missed) const {
  std::istringstream lines(word);
  std::string where;
  std::getline(lines, where);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    std::string key, last;
    int64_t started = 0, bytes = 0;
    parts >> key >> started >> last >> bytes;
    if (key != group_key || started < missed.number) {
      continue;
    }
    const bool uneven = last == "all_to_all";
    if (started == missed.number && (last != missed.name || (!uneven && bytes != missed.bytes))) {
      return fmt::format("called {} of {} bytes, not of {}, as this number", last, bytes, missed.bytes);
    }
    return std::nullopt;
  }
  return fmt::format("did not come: it {}", where);
}

void RankWatch::explain(int64_t ticket, const std::vector<int64_t>& ranks, const std::string& problem) {
  explain(record_of(ticket), ranks, problem);
}

void RankWatch::explain(const CollectiveRecord& record, const std::vector<int64_t>& ranks, const std::string& problem) {
  const auto started = record.start;
  const bool late = options_.timeout.count() > 0 && Clock::now() - started >= options_.timeout * 9 / 10;
  const std::string what = fmt::format(
      "{} (ranks {}) {}",
      record.describe(),
      fmt::join(ranks, ", "),
      late ? fmt::format("was not finished within {}", seconds_text(options_.timeout)) : "failed");
  std::string report;
  try {
    publish_where();
    store_.add(kAlarm, 1);
    const auto has_word = [&](int64_t rank) { return rank == options_.rank || store_.check(where_key(rank)); };
    // A connection that breaks is a rank that ends: its own message may be on the way.
    const auto deadline = Clock::now() + options_.patience;
    while (Clock::now() < deadline) {
      look_for_failure();
      check();
      if (late && std::all_of(ranks.begin(), ranks.end(), has_word)) {
        break;
      }
      std::this_thread::sleep_for(milliseconds(50));
    }
    std::vector<std::string> absent;
    const std::string key = log_.groups().empty() ? "" : log_.groups()[record.group].key;
    for (const int64_t rank : ranks) {
      if (!has_word(rank)) {
        absent.push_back(called(rank) + " is silent: dead or hung");
      } else if (rank != options_.rank && record.number > 0) {
        if (const auto instead = absence(store_.get(where_key(rank)), key, record)) {
          absent.push_back(called(rank) + " " + *instead);
        }
      }
    }
    if (absent.size() > kMostNamed) {
      const size_t more = absent.size() - kMostNamed;
      absent.resize(kMostNamed);
      absent.push_back(fmt::format("and {} more", more));
    }
    report = absent.empty() ? fmt::format("{} on {}: {}", what, called(options_.rank), problem)
                            : fmt::format("{}: {}", what, fmt::join(absent, "; "));
    store_.run([report](c10d::Store& store) { publish_failure(store, -1, report); });
    look_for_failure();  // All ranks say the same: the first report.
  } catch (const PeerFailure&) {
    throw;
  } catch (const StoreSilence& silence) {
    report = fmt::format("{}: {} (and {})", what, problem, silence.what());
  } catch (const std::exception&) {
    report = fmt::format("{}: {} (and {})", what, problem, kStoreGone);
  }
  check();
  {
    const std::lock_guard lock(mutex_);
    failure_.emplace(report, -1);  // before a device that waits lets the host go on
  }
  options_.disconnect();
  throw PeerFailure(report, -1);
}

void RankWatch::fail(const std::string& message) noexcept {
  failed_ = true;
  try {
    store_.run([rank = options_.rank, message](c10d::Store& store) { publish_failure(store, rank, message); });
  } catch (const std::exception&) {
    // Nobody is left to be told.
  }
  options_.disconnect();
}

void RankWatch::wait_for_count(const std::string& key, int64_t count, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (store_.add(key, 0) < count && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void RankWatch::leave(milliseconds limit) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;  // The last word stays.
    }
    wake_.notify_all();
    store_.set(where_key(options_.rank), "has ended without an error");
    store_.add(kGone, 1);
    wait_for_count(kGone, limit.count() > 0 ? options_.world_size : 0, limit);
  } catch (const std::exception&) {
    // The store has ended first.
  }
}

void RankWatch::linger(milliseconds limit) noexcept {
  try {
    wait_for_count(kHeard, options_.world_size - 1, limit);
  } catch (const std::exception&) {
    // The store has ended first.
  }
}

}  // namespace lehr::mesh

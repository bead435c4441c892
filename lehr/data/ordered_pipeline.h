// A parallel pipeline whose results are returned in the order of its inputs.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace lehr::data {

/// `take` returns items one at a time (never called concurrently) until it returns nothing; `work` turns items into
/// results, concurrently; next() returns the results in the order of the items, for any number of threads. At most
/// `depth` items are in flight. An exception of either function is thrown by next() at its position, and by every later
/// call. The destructor stops the threads at any time.
template <class Item, class Result>
class OrderedPipeline {
 public:
  /// Without threads, next() does the work.
  OrderedPipeline(
      int64_t num_threads, int64_t depth, std::function<std::optional<Item>()> take, std::function<Result(Item&&)> work)
      : take_(std::move(take)), work_(std::move(work)), depth_(std::max({depth, num_threads, int64_t{1}})) {
    for (int64_t i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  }

  ~OrderedPipeline() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) {
      thread.join();
    }
  }
  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;

  /// Returns the next result; nothing after the last one. Must not be called concurrently.
  std::optional<Result> next() {
    if (threads_.empty() && outcomes_.empty()) {
      produce_one();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return outcomes_.count(delivered_) != 0 || delivered_ >= end_; });
    if (delivered_ >= end_) {
      return std::nullopt;
    }
    auto found = outcomes_.find(delivered_);
    if (auto* error = std::get_if<std::exception_ptr>(&found->second)) {
      std::rethrow_exception(*error);  // not removed: every later call throws it too
    }
    std::optional<Result> result(std::move(std::get<Result>(found->second)));
    outcomes_.erase(found);
    ++delivered_;
    lock.unlock();
    changed_.notify_all();
    return result;
  }

 private:
  using Outcome = std::variant<std::exception_ptr, Result>;

  void run() {
    while (produce_one()) {
    }
  }

  /// Takes one item and works on it. Returns false if no work is left.
  bool produce_one() {
    std::optional<Item> item;
    int64_t index = 0;
    {
      const std::lock_guard only_taker(take_mutex_);
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || taken_ >= end_ || taken_ < delivered_ + depth_; });
        if (stop_ || taken_ >= end_) {
          return false;
        }
        index = taken_;
      }
      std::exception_ptr error;
      try {
        item = take_();
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (error != nullptr) {
        outcomes_.emplace(index, Outcome(std::in_place_index<0>, error));
        end_ = ++taken_;
      } else if (!item) {
        end_ = index;
      } else {
        ++taken_;
      }
    }
    if (!item) {
      changed_.notify_all();
      return false;
    }
    Outcome outcome(std::in_place_index<0>, nullptr);
    try {
      outcome.template emplace<1>(work_(std::move(*item)));
    } catch (...) {
      outcome.template emplace<0>(std::current_exception());
    }
    {
      const std::lock_guard lock(mutex_);
      outcomes_.emplace(index, std::move(outcome));
    }
    changed_.notify_all();
    return true;
  }

  std::function<std::optional<Item>()> take_;
  std::function<Result(Item&&)> work_;
  int64_t depth_;

  std::mutex take_mutex_;  // held while taking; locked before mutex_
  std::mutex mutex_;       // guards everything below
  std::condition_variable changed_;
  std::map<int64_t, Outcome> outcomes_;
  int64_t taken_ = 0;
  int64_t delivered_ = 0;
  int64_t end_ = INT64_MAX;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lehr::data

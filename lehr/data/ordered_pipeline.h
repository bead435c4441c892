// Work for several threads whose results come out in the order in which it was taken.
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

/// `take` gives items one at a time (never two calls at once) until it gives nothing; `work` turns items into results,
/// many at once; next() returns the results in the order of the items, whatever the number of threads. At most `depth`
/// items are on their way. An exception of either function comes out of next() in its turn, and of every later call.
/// The destructor stops the threads, whatever they are at.
template <class Item, class Result>
class OrderedPipeline {
 public:
  /// With no threads, the work is done in next().
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

  /// The next result; nothing after the last one. For one thread at a time.
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
      std::rethrow_exception(*error);  // stays where it is: there is nothing sensible after it
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

  /// Takes one item and works on it. False when there is nothing more to do.
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
  std::mutex mutex_;       // of everything below
  std::condition_variable changed_;
  std::map<int64_t, Outcome> outcomes_;
  int64_t taken_ = 0;
  int64_t delivered_ = 0;
  int64_t end_ = INT64_MAX;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lehr::data

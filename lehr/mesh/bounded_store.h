// A client of the ranks' store for callers that must not block forever.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/torch.h"

namespace c10d {
class Store;
}

namespace lehr::mesh {

/// Thrown if the store has not answered a call in time. The call may still take effect.
class StoreTimeout : public Error {
 public:
  explicit StoreTimeout(const std::string& message) : Error(ErrorKind::runtime, message) {}
};

/// A store whose calls end within a limit. c10d's calls wait for an answer as long as the connection stands, and a
/// machine that hangs does not break it. Calls run on a thread of their own, one after the other. A call that fails is
/// repeated once over a new connection. Any thread may use it.
class BoundedStore {
 public:
  /// Opens a connection of its own, like that of `store`.
  BoundedStore(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit);
  /// Abandons a call that the store has not answered.
  ~BoundedStore();
  /// Pending and later calls throw StoreTimeout.
  void close();
  BoundedStore(const BoundedStore&) = delete;
  BoundedStore& operator=(const BoundedStore&) = delete;

  // Like c10d::Store's functions. Each throws StoreTimeout after the limit, and rethrows the store's error if a new
  // connection does not help.
  bool check(const std::string& key);
  std::string get(const std::string& key);
  void set(const std::string& key, const std::string& value);
  int64_t add(const std::string& key, int64_t value);

  /// Runs several calls as one. `work` runs again if it fails, and even after StoreTimeout, once the store answers.
  void run(std::function<void(c10d::Store&)> work);

 private:
  struct State;
  struct Call;
  void run(std::function<void(c10d::Store&)> work, bool even_late);
  static void serve(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::chrono::milliseconds limit_;
};

}  // namespace lehr::mesh

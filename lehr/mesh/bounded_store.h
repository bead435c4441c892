// The ranks' store for those that must not wait for it for ever.
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

/// A call that the store has not answered in time. It may be done yet.
class StoreSilence : public Error {
 public:
  explicit StoreSilence(const std::string& message) : Error(ErrorKind::runtime, message) {}
};

/// A store whose calls end within a limit: c10d's wait for an answer as long as the connection stands, which a machine
/// that hangs does not break. They are made on a thread of their own, one after the other. A call that fails is made
/// once more over a new connection. Any thread.
class BoundedStore {
 public:
  /// Makes a connection of its own, like that of `store`.
  BoundedStore(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit);
  /// Leaves a call that is not answered to itself.
  ~BoundedStore();
  /// Calls that wait, and later ones, throw StoreSilence.
  void close();
  BoundedStore(const BoundedStore&) = delete;
  BoundedStore& operator=(const BoundedStore&) = delete;

  // As c10d::Store's. Each throws StoreSilence after the limit, and what the store throws if a new connection does not
  // help.
  bool check(const std::string& key);
  std::string get(const std::string& key);
  void set(const std::string& key, const std::string& value);
  int64_t add(const std::string& key, int64_t value);

  /// Several calls as one. It is run twice if it fails, and, after StoreSilence, as soon as the store answers.
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

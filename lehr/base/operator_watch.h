// What watches the operators and modules of a thread: the seam at which a parallel plan is checked before it runs
// (shard/plan_check.h).
//
// A watch follows ATen's operators by itself. Those of Lehr whose bodies it cannot follow (loops over sizes that depend
// on data, collectives with a backward of their own) state what they are instead, and are not run.
#pragma once

#include <vector>

#include "lehr/base/layout.h"
#include "lehr/base/torch.h"

namespace lehr {

/// A tensor that an operator takes, and how it must lie on the operator's axes.
struct StatedInput {
  const char* name;
  at::Tensor tensor;
  Placement placement = {};
};

/// What an operator says of itself. On axes other than its own it acts as on one device.
struct Statement {
  const char* name = "";                 ///< "all_gather"
  std::vector<int64_t> ranks = {};       ///< That work together, which tells the operator's axes; none for one device.
  std::vector<StatedInput> inputs = {};  ///< Undefined ones are left out of account.
  Placement gives = {};                  ///< On its axes.
  std::vector<int64_t> shape = {};       ///< Of the result on this rank; dimensions mean those of inputs[like].
  at::ScalarType dtype = at::kFloat;
  size_t like = 0;
};

/// Sees what a thread does between WatchOperators' beginning and end.
class OperatorWatch {
 public:
  virtual ~OperatorWatch() = default;
  /// Gives what the operator would give: a tensor on meta. Throws a usage error if it must not be called like this.
  virtual at::Tensor state(const Statement& statement) = 0;
  /// A module's call begins and ends.
  virtual void enter(const torch::nn::Module& module) = 0;
  virtual void leave() = 0;
};

/// This thread's watch; null, as nearly always, if there is none.
OperatorWatch* operator_watch();

/// Makes it the thread's watch for a scope.
class WatchOperators {
 public:
  explicit WatchOperators(OperatorWatch& watch);
  ~WatchOperators();
  WatchOperators(const WatchOperators&) = delete;
  WatchOperators& operator=(const WatchOperators&) = delete;

 private:
  OperatorWatch* before_;
};

/// The call of a module, for a watch.
class WatchedCall {
 public:
  explicit WatchedCall(const torch::nn::Module& module) : watch_(operator_watch()) {
    if (watch_ != nullptr) {
      watch_->enter(module);
    }
  }
  ~WatchedCall() {
    if (watch_ != nullptr) {
      watch_->leave();
    }
  }
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

 private:
  OperatorWatch* watch_;
};

}  // namespace lehr

// Observation of the operators and modules of a thread, used to check a parallel plan before it runs
// (shard/plan_check.h).
//
// A watch follows ATen's operators automatically. Lehr's operators whose bodies it cannot follow (loops over
// data-dependent sizes, collectives with a backward of their own) make a statement instead and are not run.
#pragma once

#include <vector>

#include "lehr/base/call_context.h"
#include "lehr/base/layout.h"
#include "lehr/base/torch.h"

namespace lehr {

/// A tensor input of an operator, and its required placement on the operator's axes.
struct StatedInput {
  const char* name;
  at::Tensor tensor;
  Placement placement = {};
};

/// An operator's statement of its inputs and its result. On other axes than its own it acts as on one device.
struct Statement {
  const char* name = "";                 ///< Such as "all_gather".
  std::vector<int64_t> ranks = {};       ///< Ranks that work together; they identify the operator's axes. Empty for one
                                         ///< device.
  std::vector<StatedInput> inputs = {};  ///< Undefined tensors are ignored.
  Placement gives = {};                  ///< Placement of the result on the operator's axes.
  std::vector<int64_t> shape = {};       ///< Shape of the result on this rank; its dimensions are those of
                                         ///< inputs[like].
  at::ScalarType dtype = at::kFloat;
  size_t like = 0;
};

/// Observes a thread during the lifetime of a WatchOperators.
class OperatorWatch {
 public:
  virtual ~OperatorWatch() = default;
  /// Returns the operator's result as a meta tensor. Throws a usage error if the inputs violate the statement.
  virtual at::Tensor state(const Statement& statement) = 0;
  /// Called at the beginning and at the end of a module's call.
  virtual void enter(const torch::nn::Module& module) = 0;
  virtual void leave() = 0;
};

/// This thread's watch; null if there is none, which is the common case.
OperatorWatch* operator_watch();

/// Sets the thread's watch for a scope.
class WatchOperators {
 public:
  explicit WatchOperators(OperatorWatch& watch);

 private:
  ContextScope<OperatorWatch*> scope_;
};

/// The scope of a module's call, reported to the watch.
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

// Records this thread's operators that make the host wait for a device, for tests of paths that must not wait.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops::test {

/// Records them during its lifetime. Reads inside ATen's CPU optimizers, which read their step counters, do not count.
class WatchReads {
 public:
  WatchReads()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {
    reads().clear();
  }
  ~WatchReads() { at::removeCallback(handle_); }
  WatchReads(const WatchReads&) = delete;
  WatchReads& operator=(const WatchReads&) = delete;

  /// The reads recorded by this thread's last object.
  static std::vector<std::string>& reads() {
    static thread_local std::vector<std::string> names;
    return names;
  }

 private:
  static int& in_optimizer() {
    static thread_local int depth = 0;
    return depth;
  }
  struct InOptimizer : at::ObserverContext {
    InOptimizer() { ++in_optimizer(); }
    ~InOptimizer() override { --in_optimizer(); }
  };
  static void end(const at::RecordFunction&, at::ObserverContext*) {}
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const std::string name = function.name();
    if (name.starts_with("aten::_fused_adamw")) {
      return std::make_unique<InOptimizer>();
    }
    for (const char* read : {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"}) {
      if (in_optimizer() == 0 && name == std::string("aten::") + read) {
        reads().push_back(name);
      }
    }
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace lehr::ops::test

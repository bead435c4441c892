// SIGTERM and Ctrl-C without signal handlers.
#pragma once

#include <atomic>
#include <thread>

namespace lehr {

/// SIGTERM and SIGINT (Ctrl-C), as a question that a loop asks between two steps.
///
/// The signals are blocked in every thread and received on one thread of this object, which computes nothing. A
/// handler that interrupts a thread inside a matrix product destroys memory: for large K, oneDNN's sgemm kernels
/// point the stack register at a workspace on the heap, and the kernel's signal frame is then written below it.
///
/// Until `defer` is called, a signal ends the program at once with 128 + its number, as without this object. After
/// it, the first one is kept for `received`, and a second one ends the program.
class StopSignals {
 public:
  /// To be made before any thread that computes: threads take over the signal mask of the one that starts them.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// From here on the loop answers the first signal.
  void defer() { deferred_ = true; }

  /// The signal that came, or 0.
  int received() const { return received_; }

 private:
  void listen();

  std::atomic<bool> deferred_ = false;
  std::atomic<bool> ending_ = false;
  std::atomic<int> received_ = 0;
  std::thread listener_;
};

}  // namespace lehr

// SIGTERM and Ctrl-C without signal handlers.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

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

  /// What is done before a signal ends the program at once, on the thread that receives signals: `act(signal, second)`,
  /// where `second` says that the first one was not answered yet. It should take seconds at most. Empty: nothing.
  /// Returns when an act that is under way is done, so never then.
  void set_last_act(std::function<void(int signal, bool second)> act);

  /// The signal that came, or 0.
  int received() const { return received_; }

 private:
  void listen();

  std::atomic<bool> deferred_ = false;
  std::atomic<bool> ending_ = false;
  std::atomic<int> received_ = 0;
  std::mutex mutex_;  // over last_act_
  std::function<void(int signal, bool second)> last_act_;
  std::thread listener_;
};

/// A last act for as long as what it uses lives.
class LastAct {
 public:
  LastAct(StopSignals& signals, std::function<void(int signal, bool second)> act) : signals_(signals) {
    signals_.set_last_act(std::move(act));
  }
  ~LastAct() { signals_.set_last_act({}); }
  LastAct(const LastAct&) = delete;
  LastAct& operator=(const LastAct&) = delete;

 private:
  StopSignals& signals_;
};

}  // namespace lehr

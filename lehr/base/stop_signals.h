// SIGTERM, SIGHUP and Ctrl-C without signal handlers.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace lehr {

/// True if the process ignores the signal, such as SIGHUP after a start by nohup.
bool is_ignored(int signal);

/// SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal was closed) as a flag that a loop polls between two steps. SIGHUP
/// stays ignored if it was ignored when the program started.
///
/// The signals are blocked in every thread and received on one thread of this object, which computes nothing. A handler
/// that interrupts a thread inside a matmul corrupts memory: for large K, oneDNN's sgemm kernels point the stack
/// register at a workspace on the heap, and the kernel writes the signal frame below it.
///
/// Until `defer` is called, a signal ends the program immediately with 128 + its number, as without this object. After
/// that, the first signal is kept for `received`, and a second one ends the program, except within a fifth of a second:
/// a terminal sends Ctrl-C to all its processes, and the parent of this one may pass it on. A second SIGHUP is ignored:
/// for one closed terminal, the shell and the system each send it.
class StopSignals {
 public:
  /// Construct it before any computing thread: threads inherit the signal mask of the thread that starts them.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// From now on the first signal is kept for `received`, or, without `deferred`, ends the program again.
  void defer(bool deferred = true) { deferred_ = deferred; }

  /// Sets a callback that runs on the receiving thread before a signal ends the program: `callback(signal, second)`,
  /// where `second` is true if an earlier signal was not answered yet. It should take seconds at most. An empty
  /// function removes it. Waits for a running callback, after which the process ends, so it does not return then.
  void set_exit_callback(std::function<void(int signal, bool second)> callback);

  /// The received signal, or 0.
  int received() const { return received_; }

 private:
  void listen();

  std::atomic<bool> deferred_ = false;
  std::atomic<bool> ending_ = false;
  std::atomic<int> received_ = 0;
  std::mutex mutex_;  // guards exit_callback_
  std::function<void(int signal, bool second)> exit_callback_;
  std::thread listener_;
};

/// Sets the exit callback of `signals` while it exists, so that the callback may use objects that outlive this one.
class ExitCallback {
 public:
  ExitCallback(StopSignals& signals, std::function<void(int signal, bool second)> callback) : signals_(signals) {
    signals_.set_exit_callback(std::move(callback));
  }
  ~ExitCallback() { signals_.set_exit_callback({}); }
  ExitCallback(const ExitCallback&) = delete;
  ExitCallback& operator=(const ExitCallback&) = delete;

 private:
  StopSignals& signals_;
};

}  // namespace lehr

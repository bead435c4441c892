// The message of a command that a signal stops: its progress, the results that are kept, and how to continue.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/stop_signals.h"

namespace lehr::app {

/// Thrown by StopNotice::stop_if_asked. On its way, destructors remove half-written output.
class Stopped : public std::exception {
 public:
  explicit Stopped(int signal) : signal_(signal) {}
  const char* what() const noexcept override { return "stopped by a signal"; }
  /// The exit code of a program that a signal stopped: 128 + the signal.
  int exit_code() const { return 128 + signal_; }

 private:
  int signal_;
};

/// Receives Ctrl-C, SIGTERM and SIGHUP (StopSignals) for a command. From `listen` on, a signal ends the program with
/// 128 + its number, after the line "lehr search: stopped by Ctrl-C " and the text of `set` on standard error.
class StopNotice {
 public:
  /// `command` is its name, `kept` the first text.
  StopNotice(std::string command, std::string kept) : command_(std::move(command)), kept_(std::move(kept)) {}

  /// Begins to receive signals. Call it before any computing thread exists. Only a process that `tells` writes the
  /// line.
  void listen(bool tells = true);
  /// Changes the text; thread-safe.
  void set(std::string kept);
  /// From now on the first signal is kept for `received` and `stop_if_asked`, and a second one ends the program;
  /// without `deferred`, each ends it, as before.
  void defer(bool deferred = true);
  /// The signal that was kept, or 0.
  int received() const;
  /// Throws Stopped if a signal was kept.
  void stop_if_asked() const;
  /// Writes the line for a signal, in a process that tells.
  void tell(int signal) const;

 private:
  std::string command_;
  mutable std::mutex mutex_;  // guards kept_
  std::string kept_;
  bool tells_ = false;
  std::optional<StopSignals> signals_;
};

/// Calls `write(stop_if_asked)`, which writes a new folder and calls the function before each tensor; it should do all
/// of a command's work, since signals are received before computing threads start. Returns 0, or the exit code after a
/// signal, when the folder has been removed.
int write_or_stop(
    const std::string& command,
    const std::string& folder,
    const std::function<void(const std::function<void()>& stop_if_asked)>& write);

/// Returns the line for a shell that runs the program with these arguments.
std::string command_line_of(const std::string& command, const std::vector<std::string>& args);

}  // namespace lehr::app

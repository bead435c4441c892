#include "lehr/base/stop_signals.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>

namespace lehr {

namespace {
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSameStop(200);

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (!is_ignored(SIGHUP)) {  // A blocked signal is received even if it is ignored.
    sigaddset(&set, SIGHUP);
  }
  return set;
}
}  // namespace

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

StopSignals::StopSignals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  listener_ = std::thread([this] { listen(); });
}

StopSignals::~StopSignals() {
  ending_ = true;
  pthread_kill(listener_.native_handle(), SIGTERM);  // wakes only the listener
  listener_.join();
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignals::set_exit_callback(std::function<void(int signal, bool second)> callback) {
  const std::lock_guard lock(mutex_);
  exit_callback_ = std::move(callback);
}

void StopSignals::listen() {
  const sigset_t set = stop_signals();
  Clock::time_point first;
  for (int signal = 0; sigwait(&set, &signal) == 0;) {
    if (ending_) {
      return;
    }
    const bool again = received_ != 0 && signal != SIGHUP && Clock::now() - first > kSameStop;
    if (!deferred_ || again) {
      const std::lock_guard lock(mutex_);
      try {
        if (exit_callback_) {
          exit_callback_(signal, received_ != 0);
        }
      } catch (const std::exception&) {
        // The process ends in any case.
      }
      std::_Exit(128 + signal);
    }
    if (received_ == 0) {
      first = Clock::now();
      received_ = signal;
    }
  }
}

}  // namespace lehr

#include "lehr/base/stop_signals.h"

#include <pthread.h>

#include <csignal>
#include <cstdlib>

namespace lehr {

namespace {
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}
}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  listener_ = std::thread([this] { listen(); });
}

StopSignals::~StopSignals() {
  ending_ = true;
  pthread_kill(listener_.native_handle(), SIGTERM);  // wakes the listener alone
  listener_.join();
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignals::listen() {
  const sigset_t set = stop_signals();
  for (int signal = 0; sigwait(&set, &signal) == 0;) {
    if (ending_) {
      return;
    }
    if (!deferred_ || received_ != 0) {
      std::_Exit(128 + signal);
    }
    received_ = signal;
  }
}

}  // namespace lehr

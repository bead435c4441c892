#include "lehr/base/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace lehr {
namespace {

void send(int signal) {
  kill(getpid(), signal);
}

bool arrives(const StopSignals& signals, int signal) {
  for (int i = 0; i < 1000 && signals.received() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return signals.received() == signal;
}

TEST(StopSignals, KeepsTheFirstSignalForTheLoopOnceDeferred) {
  StopSignals signals;
  signals.defer();
  EXPECT_EQ(signals.received(), 0);
  send(SIGINT);
  EXPECT_TRUE(arrives(signals, SIGINT));
}

TEST(StopSignals, CanBeMadeAgain) {
  for (int i = 0; i < 3; ++i) {
    StopSignals signals;
    signals.defer();
    send(SIGTERM);
    EXPECT_TRUE(arrives(signals, SIGTERM));
  }
}

TEST(StopSignals, EndsTheProgramAtOnceBeforeTheLoopRuns) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        send(SIGTERM);
        sleep(30);
      },
      testing::ExitedWithCode(143),
      "");
}

TEST(StopSignals, EndsTheProgramOnTheSecondSignal) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.defer();
        send(SIGINT);
        if (arrives(signals, SIGINT)) {
          send(SIGINT);
          sleep(30);
        }
      },
      testing::ExitedWithCode(130),
      "");
}

}  // namespace
}  // namespace lehr

#include "lehr/base/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
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

// Each case runs in a fresh process, since threads of other tests could receive the signals.
class StopSignalsTest : public testing::Test {
 protected:
  StopSignalsTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(StopSignalsTest, KeepsTheFirstSignalForTheLoopOnceDeferred) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.defer();
        const bool none = signals.received() == 0;
        send(SIGINT);
        std::_Exit(none && arrives(signals, SIGINT) ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "");
}

TEST_F(StopSignalsTest, CanBeConstructedAgain) {
  EXPECT_EXIT(
      {
        bool all = true;
        for (int i = 0; i < 3; ++i) {
          StopSignals signals;
          signals.defer();
          send(SIGTERM);
          all = all && arrives(signals, SIGTERM);
        }
        std::_Exit(all ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "");
}

TEST_F(StopSignalsTest, EndsTheProgramImmediatelyBeforeTheLoopRuns) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        send(SIGTERM);
        sleep(30);
      },
      testing::ExitedWithCode(143),
      "");
}

TEST_F(StopSignalsTest, EndsTheProgramOnTheSecondSignal) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.defer();
        send(SIGINT);
        if (arrives(signals, SIGINT)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          send(SIGINT);
          sleep(30);
        }
      },
      testing::ExitedWithCode(130),
      "");
}

TEST_F(StopSignalsTest, ClosingTheTerminalIsAStopHoweverOftenItIsTold) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_DFL);
        StopSignals signals;
        signals.defer();
        send(SIGHUP);
        const bool first = arrives(signals, SIGHUP);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        send(SIGHUP);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::_Exit(first ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "");
}

TEST_F(StopSignalsTest, LeavesTheClosingOfTheTerminalIgnoredIfItWas) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);  // nohup
        StopSignals signals;
        send(SIGHUP);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        send(SIGTERM);
        sleep(30);
      },
      testing::ExitedWithCode(143),
      "");
}

// A terminal sends Ctrl-C to all processes, and the parent of this one may pass it on.
TEST_F(StopSignalsTest, TakesASignalThatFollowsAtOnceForTheSame) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.defer();
        send(SIGINT);
        const bool first = arrives(signals, SIGINT);
        send(SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::_Exit(first && signals.received() == SIGINT ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "");
}

}  // namespace
}  // namespace lehr

// SIGKILL during a save, before and after every system call of it: the old or the new state is complete on the disk.
#include <gmock/gmock.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include "lehr/state/async_checkpointer.h"
#include "test/state/checkpoint_support.h"

namespace lehr::state {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::hidden_entries;
using testing::holds;
using ::testing::IsEmpty;
using testing::make_contents;
using testing::steps_of;
using testing::TemporaryFolder;

// Makes renameat2 fail in a process that is about to call it, as if its file system lacked it.
[[maybe_unused]] void refuse_exchange(pid_t child) {
#ifdef __x86_64__
  struct user_regs_struct registers {};
  if (::ptrace(PTRACE_GETREGS, child, nullptr, &registers) == 0 &&
      static_cast<long>(registers.orig_rax) == SYS_renameat2) {
    registers.orig_rax = static_cast<unsigned long long>(-1);  // an unknown call: ENOSYS
    ::ptrace(PTRACE_SETREGS, child, nullptr, &registers);
  }
#endif
}

enum class Outcome { killed, finished, not_allowed };

// Runs `action` in a process of its own and kills it at its stop number `stop`: each system call stops at its begin
// (not done yet) and at its end (done).
Outcome run_and_kill(const std::function<void()>& action, int stop, bool without_exchange) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      ::_exit(77);
    }
    ::raise(SIGSTOP);
    try {
      action();
    } catch (const std::exception& error) {
      ::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  for (int i = 0; WIFSTOPPED(status) && i < stop; ++i) {
    if (without_exchange && i > 0) {
      refuse_exchange(child);
    }
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return Outcome::killed;
  }
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_THAT(WEXITSTATUS(status), AnyOf(0, 77));
  return WEXITSTATUS(status) == 77 ? Outcome::not_allowed : Outcome::finished;
}

struct Tally {
  int kills = 0;
  int old_state = 0;
  int new_state = 0;
};

// A store with a checkpoint of step 1; `action` saves `after` into it and is killed at every stop in turn.
void kill_everywhere(
    const CheckpointContents& after,
    const std::function<void(CheckpointStore&)>& action,
    bool without_exchange,
    Tally& tally) {
  const CheckpointContents before = make_contents(1, 1);
  for (int stop = 1;; ++stop) {
    SCOPED_TRACE(fmt::format("killed at stop {}", stop));
    const TemporaryFolder folder(testing::memory_folder());
    CheckpointStore store(folder.path());
    write_checkpoint(store, before);
    const Outcome outcome = run_and_kill([&] { action(store); }, stop, without_exchange);
    if (outcome == Outcome::not_allowed) {
      GTEST_SKIP() << "ptrace is not allowed here";
    }
    if (!without_exchange) {
      ASSERT_TRUE(store.latest().has_value()) << "the last checkpoint must stand at every moment";
    }
    for (const Checkpoint& seen : store.list()) {
      ASSERT_TRUE(holds(seen.path, seen.step == after.step && !holds(seen.path, before) ? after : before));
    }
    store.recover();
    ASSERT_THAT(hidden_entries(folder.path()), IsEmpty());
    ASSERT_TRUE(store.latest().has_value());
    const Checkpoint latest = *store.latest();
    const bool is_new = holds(latest.path, after);
    ASSERT_TRUE(is_new || holds(latest.path, before));
    ++(is_new ? tally.new_state : tally.old_state);
    // The next run can continue.
    write_checkpoint(store, make_contents(2, 5));
    ASSERT_TRUE(holds(store.path_of(2), make_contents(2, 5)));
    if (outcome == Outcome::finished) {
      ASSERT_TRUE(is_new);
      return;
    }
    ++tally.kills;
  }
}

void expect_both_states(const Tally& tally) {
  // A save opens, fills and syncs five files; each of its calls stops twice.
  EXPECT_GT(tally.kills, 100);
  EXPECT_GT(tally.old_state, 50);
  EXPECT_GT(tally.new_state, 2);
}

TEST(CheckpointKilled, AnywhereInASaveWithDeletionLeavesTheOldOrTheNewState) {
  const CheckpointContents after = make_contents(2, 2);
  Tally tally;
  kill_everywhere(
      after,
      [&](CheckpointStore& store) {
        write_checkpoint(store, after);
        store.keep_latest(1);
      },
      false,
      tally);
  if (!IsSkipped()) {
    expect_both_states(tally);
  }
}

TEST(CheckpointKilled, AnywhereInAReplacementLeavesTheOldOrTheNewState) {
  const CheckpointContents after = make_contents(1, 2);
  Tally tally;
  kill_everywhere(
      after, [&](CheckpointStore& store) { write_checkpoint(store, after); }, false, tally);
  if (!IsSkipped()) {
    expect_both_states(tally);
  }
}

#ifdef __x86_64__
TEST(CheckpointKilled, AnywhereInAReplacementWithoutRenameExchangeLeavesTheOldOrTheNewStateToRecover) {
  const CheckpointContents after = make_contents(1, 2);
  Tally tally;
  kill_everywhere(
      after, [&](CheckpointStore& store) { write_checkpoint(store, after); }, true, tally);
  if (!IsSkipped()) {
    expect_both_states(tally);
  }
}
#endif

TEST(CheckpointKilled, AtRandomMomentsOfAsynchronousSavesLeavesWholeCheckpoints) {
  const TemporaryFolder folder(testing::memory_folder());
  CheckpointStore store(folder.path());
  uint64_t random = 12345;
  int64_t last = 0;
  size_t before = 0;  // checkpoints that the previous round left
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      AsyncCheckpointer checkpointer(store, 2);
      for (int64_t step = last + 1;; ++step) {
        checkpointer.save(make_contents(step, step));
      }
    }
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    ::usleep(static_cast<useconds_t>(500 + (random >> 33) % 20000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);

    const auto checkpoints = store.list();
    // A kill between a save and the deletion after it leaves one more, also in rounds that follow each other.
    ASSERT_LE(checkpoints.size(), std::max<size_t>(before, 2) + 1);
    before = checkpoints.size();
    for (const Checkpoint& checkpoint : checkpoints) {
      ASSERT_TRUE(holds(checkpoint.path, make_contents(checkpoint.step, checkpoint.step))) << checkpoint.path;
    }
    store.recover();
    ASSERT_THAT(hidden_entries(folder.path()), IsEmpty());
    const int64_t latest = store.latest() ? store.latest()->step : 0;
    ASSERT_GE(latest, last) << "the last checkpoint must stand";
    last = latest;
  }
  EXPECT_GT(last, 0) << "some save must have ended";
}

}  // namespace
}  // namespace lehr::state

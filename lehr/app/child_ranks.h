// The ranks of lehr launch: child processes that start together, get signals together, and end together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lehr::app {

/// A smaller start: the number of ranks, and arguments to add to the program's.
struct FewerRanks {
  int64_t ranks = 0;
  std::vector<std::string> args = {};
};

/// The program to launch, and how.
struct ChildRanksOptions {
  /// The file of the program, and its arguments.
  std::string program;
  std::vector<std::string> args;
  int64_t ranks = 1;
  /// True: the output of all ranks is shown, each line with its rank. False: that of rank 0 is shown unchanged, and the
  /// end of another rank's output only if that rank fails.
  bool all_output = false;
  /// Number of restarts of all ranks after one failed. There is none after wrong input (exit code 2), a bug (4) or a
  /// stop by a signal.
  int64_t restarts = 0;
  /// If set, a rank that was the cause of two failures is left out of later starts: the function returns how to start
  /// on at most that many ranks, and throws a usage error if it is not possible. The launch then ends.
  std::function<FewerRanks(int64_t left)> fewer_ranks = {};
};

/// Runs the ranks and returns the exit code for all: 0, or that of the first rank that failed (128 + the signal that
/// killed it), or 128 + the signal that this process forwarded; after restarts, that of the last start. Prints one
/// message about each failure, and one about each restart. Throws a runtime error if the ranks cannot be started.
int run_child_ranks(const ChildRanksOptions& options);

}  // namespace lehr::app

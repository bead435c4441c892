// The ranks of lehr launch: child processes that start together, get signals together, and end together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr::app {

struct ChildRanksOptions {
  /// The file of the program, and its arguments.
  std::string program;
  std::vector<std::string> args;
  int64_t ranks = 1;
  /// True: the output of all ranks is shown, each line with its rank. False: that of rank 0 is shown unchanged, and the
  /// end of another rank's output only if that rank fails.
  bool all_output = false;
};

/// Runs the ranks and returns the exit code for all: 0, or that of the first rank that failed (128 + the signal that
/// killed it), or 128 + the signal that this process forwarded. Prints one message about the failure. Throws a runtime
/// error if the ranks cannot be started.
int run_child_ranks(const ChildRanksOptions& options);

}  // namespace lehr::app

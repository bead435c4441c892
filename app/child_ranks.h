// The ranks of lehr launch: processes that start together, are told of signals together, and end together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr::app {

struct ChildRanksOptions {
  /// The program's file, and its arguments.
  std::string program;
  std::vector<std::string> args;
  int64_t ranks = 1;
  /// Show what all ranks write, each line with its rank; else rank 0's as it is, and of the others what they end with.
  bool all_output = false;
};

/// Runs the ranks and returns the exit code for all: 0, or that of the first rank that failed (128 + the signal that
/// killed it), or 128 + the signal that this process was asked to pass on. Says once what failed. Throws a runtime
/// error if the ranks cannot be started.
int run_child_ranks(const ChildRanksOptions& options);

}  // namespace lehr::app

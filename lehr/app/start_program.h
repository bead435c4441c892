// The start of a program as a process of its own, for `lehr launch`.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace lehr::app {

/// A program and what it gets.
struct ProgramStart {
  std::string path;
  std::vector<std::string> args;
  std::vector<std::string> variables;  ///< "NAME=value"
  int in;                              ///< Descriptors that it has as standard input, output and error.
  int out;
  int err;
  sigset_t mask;  ///< The signals that it begins with as blocked.
};

/// Starts the program as the leader of a process group of its own, and returns its process. It is killed when the
/// calling thread ends. Throws a usage error with the reason if it cannot be executed, and a runtime error if no
/// process can be created.
pid_t start_program(const ProgramStart& program);

}  // namespace lehr::app

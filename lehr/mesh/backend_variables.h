// Environment variables that LibTorch's distributed backends read.
#pragma once

#include <string>
#include <vector>

namespace lehr::mesh {

/// An environment variable and the value that it is set to.
struct BackendVariable {
  const char* name;
  const char* value;
  bool overwrites;  ///< True if a value that the user set is replaced.
};

/// The settings that ranks need: failures are left to Watchdog, and c10d's flight recorder is off.
const std::vector<BackendVariable>& backend_variables();

/// Sets the variables, once per process; later calls do nothing. There is no other way to pass these settings:
/// ProcessGroupNCCL reads them in its constructor, which also starts the threads that they configure. Call it at the
/// start of a program, before there is a second thread: setenv concurrent with a getenv of another thread is undefined
/// behaviour. A program that does not call it sets them at its first connection, and must have no other threads then.
void set_backend_variables();

}  // namespace lehr::mesh

#include "lehr/mesh/backend_variables.h"

#include <cstdlib>

namespace lehr::mesh {

const std::vector<BackendVariable>& backend_variables() {
  static const std::vector<BackendVariable> kVariables{
      // c10d's own ways to end a process that hangs (with one stack trace per rank) are disabled: Watchdog reports on
      // all ranks which collective hung and which ranks are missing.
      {"TORCH_NCCL_BLOCKING_WAIT", "0", true},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", true},
      {"TORCH_NCCL_ENABLE_MONITORING", "0", true},
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0", true},
      {"TORCH_NCCL_PROPAGATE_ERROR", "0", true},
      {"TORCH_NCCL_DESYNC_DEBUG", "0", true},
      {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", true},
      {"TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "0", true},
      // The flight recorder writes to a map of the process without a lock, so ranks that are threads would corrupt it.
      // Lehr keeps a log of its own (collective_log.h).
      {"TORCH_FR_BUFFER_SIZE", "0", false}};
  return kVariables;
}

void set_backend_variables() {
  static const bool done = [] {
    for (const BackendVariable& variable : backend_variables()) {
      setenv(variable.name, variable.value, variable.overwrites ? 1 : 0);
    }
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace lehr::mesh

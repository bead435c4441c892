// The processes of a process group, as /proc lists them.
#pragma once

#include <sys/types.h>

namespace lehr::app {

/// Returns whether a process of the group runs that does not ignore `signal`: it has got the signal and may still save.
/// Helpers that a shell script started in the background ignore SIGINT; processes that have ended do not count.
bool may_still_save(pid_t group, int signal);

}  // namespace lehr::app

// Collectives among threads, as a c10d backend.
#pragma once

#include <memory>

#include "lehr/base/torch.h"
#include "lehr/mesh/thread_communicator.h"

namespace c10d {
class Backend;
}

namespace lehr::mesh {

/// One rank's backend of a communicator. Collectives are complete when the call returns. Sums are computed in the order
/// of ranks.
c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadCommunicator> communicator, int64_t rank);

}  // namespace lehr::mesh

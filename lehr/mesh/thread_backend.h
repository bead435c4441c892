// The collectives among threads as a backend of c10d.
#pragma once

#include <memory>

#include "lehr/base/torch.h"
#include "lehr/mesh/thread_room.h"

namespace c10d {
class Backend;
}

namespace lehr::mesh {

/// One rank's end of a room. Collectives are done when the call returns. Sums are taken in the order of ranks.
c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadRoom> room, int64_t rank);

}  // namespace lehr::mesh

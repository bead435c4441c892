// All-gather of the parts of a sequence that does not save its result for backward.
#pragma once

#include "lehr/mesh/group.h"

namespace lehr::shard {

/// mesh::all_gather along dimension 1 that saves this rank's part for backward, or nothing if that can be recomputed.
/// Operators that read the result (ops/recompute.h) gather it again in backward, once for all of them, and overlap with
/// the communication where they can. Same bits as mesh::all_gather.
at::Tensor gather_and_regather(const at::Tensor& input, const mesh::Group& group);

}  // namespace lehr::shard

// Where a run computes.
#pragma once

#include <string>

#include "lehr/base/torch.h"
#include "lehr/mesh/transport.h"

namespace lehr::train {

/// "cpu", "cuda", or "auto": a GPU if there is one. Loads LibTorch's CUDA half and Lehr's kernels (ops/cuda.h) when a
/// GPU is wanted, and makes GPU number `local_rank` the thread's current one. Throws a usage error if "cuda" is asked
/// for and cannot be had, with the reason.
at::Device choose_device(const std::string& wanted, int64_t local_rank = 0);

/// The device that a launched rank asks its connection for: as choose_device, but "auto" means the CPU, since one rank
/// cannot know whether all others have a GPU of their own.
at::Device choose_rank_device(const std::string& wanted, int64_t local_rank);

/// The device of a run: that of the ranks' connections if there are several, else as choose_device. Throws a usage
/// error if "cuda" is asked for and the ranks are connected on CPUs only.
at::Device choose_device(const std::string& wanted, const mesh::Transport* transport);

}  // namespace lehr::train

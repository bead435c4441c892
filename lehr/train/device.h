// Where a run computes.
#pragma once

#include <string>

#include "lehr/base/torch.h"

namespace lehr::train {

/// "cpu", "cuda", or "auto": a GPU if there is one. Loads LibTorch's CUDA half when a GPU is wanted. Throws a usage
/// error if "cuda" is asked for and cannot be had, with the reason. Of several ranks each gets the CPU: those on GPUs
/// cannot talk yet.
at::Device choose_device(const std::string& wanted, int64_t world_size = 1);

}  // namespace lehr::train

// Where a run computes.
#pragma once

#include <string>

#include "lehr/base/torch.h"

namespace lehr::train {

/// "cpu", "cuda", or "auto": a GPU if there is one. Loads LibTorch's CUDA half when a GPU is wanted. Throws a usage
/// error if "cuda" is asked for and cannot be had, with the reason.
at::Device choose_device(const std::string& wanted);

}  // namespace lehr::train

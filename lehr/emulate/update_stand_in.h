// An optimizer that moves the bytes of an update and computes nothing, for ranks on meta tensors.
#pragma once

#include <memory>

#include "lehr/optim/optimizer.h"

namespace lehr::emulate {

/// Returns a stand-in for `real`, whose state it allocates. step() reports the bytes that a fused update moves
/// (meter/operation_meter.h): it reads gradients, and reads and writes values and state.
std::unique_ptr<optim::Optimizer> update_stand_in(std::unique_ptr<optim::Optimizer> real);

}  // namespace lehr::emulate

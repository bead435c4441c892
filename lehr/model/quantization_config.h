// The key quantization_config of a config.json.
#pragma once

#include "lehr/config/node.h"

namespace lehr::model {

/// Throws a usage error that names the key unless state::WeightReader reads the weights of such a folder: mxfp4, and
/// fp8 with scales of 128 x 128 blocks. Which tensors are quantized is read from the files.
void check_quantization(const Node& config);

}  // namespace lehr::model

// Qwen3 MoE models as tools take them apart.
#pragma once

#include <memory>

#include "lehr/descriptor/model_descriptor.h"

namespace lehr::model {

std::shared_ptr<const descriptor::ModelDescriptor> qwen3_moe_descriptor();

}  // namespace lehr::model

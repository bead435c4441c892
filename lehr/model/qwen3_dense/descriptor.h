// Qwen3 dense models as tools take them apart.
#pragma once

#include <memory>

#include "lehr/descriptor/model_descriptor.h"

namespace lehr::model {

std::shared_ptr<const descriptor::ModelDescriptor> qwen3_dense_descriptor();

}  // namespace lehr::model

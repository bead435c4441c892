// Llama 3 models as tools take them apart.
#pragma once

#include <memory>

#include "lehr/descriptor/model_descriptor.h"

namespace lehr::model {

std::shared_ptr<const descriptor::ModelDescriptor> llama3_descriptor();

}  // namespace lehr::model

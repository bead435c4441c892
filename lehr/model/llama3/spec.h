// The Llama 3 family as tools see it.
#pragma once

#include "lehr/descriptor/model_args.h"

namespace lehr::model {

/// "llama3", with the published sizes and "debugmodel".
descriptor::ModelFamily llama3_family();

}  // namespace lehr::model

// The Qwen3 dense family as tools see it.
#pragma once

#include "lehr/descriptor/model_args.h"

namespace lehr::model {

/// "qwen3", with the published sizes and "debugmodel".
descriptor::ModelFamily qwen3_dense_family();

}  // namespace lehr::model

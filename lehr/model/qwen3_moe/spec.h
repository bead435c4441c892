// The Qwen3 MoE family as tools see it.
#pragma once

#include "lehr/descriptor/model_args.h"

namespace lehr::model {

/// "qwen3_moe", with the published sizes and "debugmodel".
descriptor::ModelFamily qwen3_moe_family();

}  // namespace lehr::model

// The GLM-4.5 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_moe/family.h"

namespace lehr::model {

/// GLM-4.5's layer (https://arxiv.org/abs/2508.06471) is Qwen3-MoE's with DeepSeek-V3's router and shared expert, and
/// partial RoPE.
using Glm4MoELayer = Qwen3MoELayer;
using Glm4MoELayerParameters = Qwen3MoELayerParameters;
LEHR_DECODER_FAMILY(Glm4MoE, glm4_moe);

/// Returns the family "glm4_moe", with the published sizes and "debugmodel".
descriptor::ModelFamily glm4_moe_family();

}  // namespace lehr::model

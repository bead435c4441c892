// The families of Qwen3.5's text models, which those of Qwen3.6 and Qwen3.8 are, too: their models, the functions that
// lay them out on a mesh, and their sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_next/family.h"

namespace lehr::model {

using Qwen3_5Layer = Qwen3NextLayer;
using Qwen3_5LayerParameters = Qwen3NextLayerParameters;
LEHR_DECODER_FAMILY(Qwen3_5, qwen3_5);

using Qwen3_5MoELayer = Qwen3NextLayer;
using Qwen3_5MoELayerParameters = Qwen3NextLayerParameters;
LEHR_DECODER_FAMILY(Qwen3_5MoE, qwen3_5_moe);

/// Returns the family "qwen3_5", without experts, with published sizes and "debugmodel".
descriptor::ModelFamily qwen3_5_family();
/// Returns the family "qwen3_5_moe", with experts in every layer, with published sizes and "debugmodel".
descriptor::ModelFamily qwen3_5_moe_family();

}  // namespace lehr::model

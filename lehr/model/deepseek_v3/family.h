// The DeepSeek-V3 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/deepseek_v3/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(DeepseekV3, deepseek_v3);
extern template class DecoderImpl<DeepseekV3Layer, DeepseekV3LayerParameters>;

/// Returns the family "deepseek_v3", with the published sizes and "debugmodel". It also reads Kimi K2 (kimi_k2).
descriptor::ModelFamily deepseek_v3_family();

}  // namespace lehr::model

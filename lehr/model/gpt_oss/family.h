// The gpt-oss family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_moe/family.h"

namespace lehr::model {

/// gpt-oss's layer is Qwen3-MoE's with attention sinks, biases, and experts with a clamped SwiGLU.
using GptOssLayer = Qwen3MoELayer;
using GptOssLayerParameters = Qwen3MoELayerParameters;
LEHR_DECODER_FAMILY(GptOss, gpt_oss);

/// Returns the family "gpt_oss" (https://arxiv.org/abs/2508.10925), with the published sizes and "debugmodel".
descriptor::ModelFamily gpt_oss_family();

}  // namespace lehr::model

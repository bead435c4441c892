// The Mixtral family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_moe/family.h"

namespace lehr::model {

/// Mixtral's layer (https://arxiv.org/abs/2401.04088) is Qwen3-MoE's without QK-norm.
using MixtralLayer = Qwen3MoELayer;
using MixtralLayerParameters = Qwen3MoELayerParameters;
LEHR_DECODER_FAMILY(Mixtral, mixtral);

/// Returns the family "mixtral", with the published sizes and "debugmodel".
descriptor::ModelFamily mixtral_family();

}  // namespace lehr::model

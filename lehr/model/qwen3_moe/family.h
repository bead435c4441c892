// The Qwen3 MoE family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_config.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_moe/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Qwen3MoE, qwen3_moe);
extern template class DecoderImpl<Qwen3MoELayer, Qwen3MoELayerParameters>;

/// The sizes of a layer of a model with experts; other families with this layer start from them.
Qwen3MoELayerParameters mixture_parameters(const DecoderConfig& config);

/// Returns the family "qwen3_moe", with the published sizes and "debugmodel".
descriptor::ModelFamily qwen3_moe_family();

}  // namespace lehr::model

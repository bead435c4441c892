// The Qwen2.5 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/llama3/family.h"

namespace lehr::model {

/// Qwen2.5's layer (https://arxiv.org/abs/2412.15115) is Llama 3's with biases of queries, keys and values.
using Qwen2Layer = Llama3Layer;
using Qwen2LayerParameters = Llama3LayerParameters;
LEHR_DECODER_FAMILY(Qwen2, qwen2);

/// Returns the family "qwen2", with the published sizes and "debugmodel".
descriptor::ModelFamily qwen2_family();

}  // namespace lehr::model

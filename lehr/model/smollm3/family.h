// The SmolLM3 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/llama3/family.h"

namespace lehr::model {

/// SmolLM3's layer (https://huggingface.co/blog/smollm3) is Llama 3's, without rotary positions in every fourth layer.
using SmolLM3Layer = Llama3Layer;
using SmolLM3LayerParameters = Llama3LayerParameters;
LEHR_DECODER_FAMILY(SmolLM3, smollm3);

/// Returns the family "smollm3", with the published sizes and "debugmodel".
descriptor::ModelFamily smollm3_family();

}  // namespace lehr::model

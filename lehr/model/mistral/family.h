// The Mistral family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/llama3/family.h"

namespace lehr::model {

/// Mistral's layer (https://arxiv.org/abs/2310.06825) is Llama 3's with a sliding window.
using MistralLayer = Llama3Layer;
using MistralLayerParameters = Llama3LayerParameters;
LEHR_DECODER_FAMILY(Mistral, mistral);

/// Returns the family "mistral", with the published sizes and "debugmodel".
descriptor::ModelFamily mistral_family();

}  // namespace lehr::model

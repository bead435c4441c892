// The Gemma 3 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/gemma3/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Gemma3, gemma3);
extern template class DecoderImpl<Gemma3Layer, Gemma3LayerParameters>;

/// Returns the family "gemma3", with the published sizes and "debugmodel".
descriptor::ModelFamily gemma3_family();

}  // namespace lehr::model

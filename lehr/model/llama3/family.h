// The Llama 3 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/llama3/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Llama3, llama3);
extern template class DecoderImpl<Llama3Layer, Llama3LayerParameters>;

/// Returns the family "llama3", with the published sizes and "debugmodel".
descriptor::ModelFamily llama3_family();

}  // namespace lehr::model

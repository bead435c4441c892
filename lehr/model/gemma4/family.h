// The Gemma 4 family (text): its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/gemma4/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Gemma4, gemma4);
extern template class DecoderImpl<Gemma4Layer, Gemma4LayerParameters>;

/// Returns the family "gemma4", with the published sizes, "debugmodel", "debugmodel_moe", which has experts, and
/// "debugmodel_small", which has per-layer embeddings (PLE) and KV sharing.
descriptor::ModelFamily gemma4_family();

}  // namespace lehr::model

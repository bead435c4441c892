// The Gemma 4 family (text): its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/gemma4/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Gemma4, gemma4);
extern template class DecoderImpl<Gemma4Layer, Gemma4LayerParameters>;

/// Returns the family "gemma4", with the published sizes without per-layer embeddings, "debugmodel", and
/// "debugmodel_moe", which has experts.
descriptor::ModelFamily gemma4_family();

}  // namespace lehr::model

// The OLMo 2 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/olmo2/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Olmo2, olmo2);
extern template class DecoderImpl<Olmo2Layer, Olmo2LayerParameters>;

/// Returns the family "olmo2", with the published sizes and "debugmodel".
descriptor::ModelFamily olmo2_family();

}  // namespace lehr::model

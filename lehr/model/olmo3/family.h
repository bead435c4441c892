// The OLMo 3 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/olmo2/family.h"

namespace lehr::model {

/// OLMo 3's layer is OLMo 2's with sliding windows in three of four layers.
using Olmo3Layer = Olmo2Layer;
using Olmo3LayerParameters = Olmo2LayerParameters;
LEHR_DECODER_FAMILY(Olmo3, olmo3);

/// Returns the family "olmo3", with the published sizes and "debugmodel".
descriptor::ModelFamily olmo3_family();

}  // namespace lehr::model

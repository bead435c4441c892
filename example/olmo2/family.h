// The OLMo 2 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "layer.h"
#include "lehr/model/decoder_family.h"

namespace olmo2 {

LEHR_DECODER_FAMILY(Olmo2, olmo2);

/// Returns the family "olmo2", with the size "tiny".
descriptor::ModelFamily olmo2_family();

}  // namespace olmo2

// The Nemotron-H family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/nemotron_h/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(NemotronH, nemotron_h);
extern template class DecoderImpl<NemotronHLayer, NemotronHLayerParameters>;

/// Returns the family "nemotron_h": the published sizes of Nemotron-H, of Nemotron Nano 2, and of Nemotron 3 Nano and
/// Super, "debugmodel", and "debugmodel_moe", which has experts.
descriptor::ModelFamily nemotron_h_family();

}  // namespace lehr::model

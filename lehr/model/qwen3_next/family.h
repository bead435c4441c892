// The Qwen3-Next family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_config.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_next/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Qwen3Next, qwen3_next);
extern template class DecoderImpl<Qwen3NextLayer, Qwen3NextLayerParameters>;

/// The sizes of one layer of a model with gated DeltaNet; also Qwen3.5's, with or without experts. Throws an error
/// of kind bug for a config without linear_attention.
Qwen3NextLayerParameters hybrid_parameters(const DecoderConfig& config);

/// Returns the family "qwen3_next", with the published size and "debugmodel".
descriptor::ModelFamily qwen3_next_family();

}  // namespace lehr::model

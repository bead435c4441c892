// The Qwen3 dense family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_dense/layer.h"

namespace lehr::model {

LEHR_DECODER_FAMILY(Qwen3Dense, qwen3_dense);
extern template class DecoderImpl<Qwen3DenseLayer, Qwen3DenseLayerParameters>;

/// Returns the family "qwen3", with the published sizes and "debugmodel".
descriptor::ModelFamily qwen3_dense_family();

}  // namespace lehr::model

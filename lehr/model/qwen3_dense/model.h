// Qwen3 dense models: the shared decoder backbone over Qwen3 layers, and its heads.
#pragma once

#include "lehr/model/decoder.h"
#include "lehr/model/heads.h"
#include "lehr/model/qwen3_dense/layer.h"

namespace lehr::model {

using Qwen3DenseModelImpl = DecoderImpl<Qwen3DenseLayer, Qwen3DenseLayerParameters>;
LEHR_MODULE(Qwen3DenseModel);

using Qwen3DenseForCausalLMImpl = ForCausalLMImpl<Qwen3DenseModel>;
LEHR_MODULE(Qwen3DenseForCausalLM);

using Qwen3DenseForClassificationImpl = ForClassificationImpl<Qwen3DenseModel>;
LEHR_MODULE(Qwen3DenseForClassification);

using Qwen3DenseForEmbeddingImpl = ForEmbeddingImpl<Qwen3DenseModel>;
LEHR_MODULE(Qwen3DenseForEmbedding);

extern template class DecoderImpl<Qwen3DenseLayer, Qwen3DenseLayerParameters>;

}  // namespace lehr::model

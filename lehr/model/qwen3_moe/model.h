// Qwen3 MoE models: the shared decoder backbone over layers with experts, and its heads.
#pragma once

#include "lehr/model/decoder.h"
#include "lehr/model/heads.h"
#include "lehr/model/qwen3_moe/layer.h"

namespace lehr::model {

using Qwen3MoEModelImpl = DecoderImpl<Qwen3MoELayer, Qwen3MoELayerParameters>;
LEHR_MODULE(Qwen3MoEModel);

using Qwen3MoEForCausalLMImpl = ForCausalLMImpl<Qwen3MoEModel>;
LEHR_MODULE(Qwen3MoEForCausalLM);

using Qwen3MoEForClassificationImpl = ForClassificationImpl<Qwen3MoEModel>;
LEHR_MODULE(Qwen3MoEForClassification);

using Qwen3MoEForEmbeddingImpl = ForEmbeddingImpl<Qwen3MoEModel>;
LEHR_MODULE(Qwen3MoEForEmbedding);

extern template class DecoderImpl<Qwen3MoELayer, Qwen3MoELayerParameters>;

}  // namespace lehr::model

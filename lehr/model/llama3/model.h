// Llama 3 models: the shared decoder backbone over Llama layers, and its heads.
#pragma once

#include "lehr/model/decoder.h"
#include "lehr/model/heads.h"
#include "lehr/model/llama3/layer.h"

namespace lehr::model {

using Llama3ModelImpl = DecoderImpl<Llama3Layer, Llama3LayerParameters>;
LEHR_MODULE(Llama3Model);

using Llama3ForCausalLMImpl = ForCausalLMImpl<Llama3Model>;
LEHR_MODULE(Llama3ForCausalLM);

using Llama3ForClassificationImpl = ForClassificationImpl<Llama3Model>;
LEHR_MODULE(Llama3ForClassification);

using Llama3ForEmbeddingImpl = ForEmbeddingImpl<Llama3Model>;
LEHR_MODULE(Llama3ForEmbedding);

extern template class DecoderImpl<Llama3Layer, Llama3LayerParameters>;

}  // namespace lehr::model

#include "lehr/model/llama3/parallelize.h"

#include "lehr/model/parallelize_decoder.h"

namespace lehr::model {

shard::FullySharded parallelize_llama3_model(
    mesh::DistributedContext& context,
    Llama3ModelImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_model(context, model, stage, options);
}

shard::FullySharded parallelize_llama3_for_causal_lm(
    mesh::DistributedContext& context,
    Llama3ForCausalLMImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_for_causal_lm(context, model, stage, options);
}

shard::FullySharded parallelize_llama3_for_classification(
    mesh::DistributedContext& context,
    Llama3ForClassificationImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_with_head(context, model, model.cls_head, stage, options);
}

shard::FullySharded parallelize_llama3_for_embedding(
    mesh::DistributedContext& context,
    Llama3ForEmbeddingImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_with_head(context, model, model.embedding_head, stage, options);
}

shard::FullySharded parallelize_llama3(
    mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options) {
  return parallelize_decoder<Llama3Model>("Llama 3", context, model, options);
}

}  // namespace lehr::model

#include "lehr/model/qwen3_moe/parallelize.h"

#include "lehr/model/parallelize_decoder.h"

namespace lehr::model {

shard::FullySharded parallelize_qwen3_moe_model(
    mesh::DistributedContext& context,
    Qwen3MoEModelImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_model(context, model, stage, options);
}

shard::FullySharded parallelize_qwen3_moe_for_causal_lm(
    mesh::DistributedContext& context,
    Qwen3MoEForCausalLMImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_for_causal_lm(context, model, stage, options);
}

shard::FullySharded parallelize_qwen3_moe_for_classification(
    mesh::DistributedContext& context,
    Qwen3MoEForClassificationImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_with_head(context, model, model.cls_head, stage, options);
}

shard::FullySharded parallelize_qwen3_moe_for_embedding(
    mesh::DistributedContext& context,
    Qwen3MoEForEmbeddingImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_with_head(context, model, model.embedding_head, stage, options);
}

shard::FullySharded parallelize_qwen3_moe(
    mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options) {
  return parallelize_decoder<Qwen3MoEModel>("Qwen3 MoE", context, model, options);
}

}  // namespace lehr::model

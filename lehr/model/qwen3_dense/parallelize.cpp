#include "lehr/model/qwen3_dense/parallelize.h"

#include "lehr/model/parallelize_decoder.h"

namespace lehr::model {

shard::FullySharded parallelize_qwen3_dense_model(
    mesh::DistributedContext& context,
    Qwen3DenseModelImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_model(context, model, stage, options);
}

shard::FullySharded parallelize_qwen3_dense_for_causal_lm(
    mesh::DistributedContext& context,
    Qwen3DenseForCausalLMImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_for_causal_lm(context, model, stage, options);
}

shard::FullySharded parallelize_qwen3_dense_for_classification(
    mesh::DistributedContext& context,
    Qwen3DenseForClassificationImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_with_head(context, model, model.cls_head, stage, options);
}

shard::FullySharded parallelize_qwen3_dense_for_embedding(
    mesh::DistributedContext& context,
    Qwen3DenseForEmbeddingImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  return parallelize_decoder_with_head(context, model, model.embedding_head, stage, options);
}

shard::FullySharded parallelize_qwen3_dense(
    mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options) {
  return parallelize_decoder<Qwen3DenseModel>("Qwen3 dense", context, model, options);
}

}  // namespace lehr::model

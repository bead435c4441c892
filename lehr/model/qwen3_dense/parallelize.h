// Qwen3 dense models on a mesh of devices.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/model/qwen3_dense/model.h"
#include "lehr/shard/options.h"

namespace lehr::model {

/// Lays a backbone, built for `stage` and on meta, out on the context's mesh, which must outlive it; the trainer drives
/// what it gives. All ranks call it.
/// Throws a usage error that names the keys for sizes that the degrees do not divide, and for a stage that is not the
/// model's.
shard::FullySharded parallelize_qwen3_dense_model(
    mesh::DistributedContext& context,
    Qwen3DenseModelImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options = {});

/// As above, with the head.
shard::FullySharded parallelize_qwen3_dense_for_causal_lm(
    mesh::DistributedContext& context,
    Qwen3DenseForCausalLMImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options = {});
shard::FullySharded parallelize_qwen3_dense_for_classification(
    mesh::DistributedContext& context,
    Qwen3DenseForClassificationImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options = {});
shard::FullySharded parallelize_qwen3_dense_for_embedding(
    mesh::DistributedContext& context,
    Qwen3DenseForEmbeddingImpl& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options = {});

/// As above, for whichever of them `model` is; throws a usage error if it is none.
shard::FullySharded parallelize_qwen3_dense(
    mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options = {});

}  // namespace lehr::model

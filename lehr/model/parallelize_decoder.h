// How the decoder families are laid out on a mesh, written once: styles are attached to a finished model on meta, in
// the order tensor, expert, context, (activation checkpointing, which is the model's own,) fully sharded.
#pragma once

#include "lehr/base/error.h"
#include "lehr/model/heads.h"
#include "lehr/nn/moe.h"
#include "lehr/shard/options.h"
#include "lehr/shard/tensor_parallel.h"
#include "lehr/shard/vocab_parallel.h"

namespace lehr::model {

/// The mixture of experts of a decoder layer, null if it has none.
template <class Layer>
nn::MoELayerImpl* mixture_of(Layer& layer) {
  if constexpr (requires { layer.experts; }) {
    return layer.experts ? layer.experts.get() : nullptr;
  } else {
    return nullptr;
  }
}

/// Tensor and sequence parallelism of a backbone. A mixture of experts works on sequence parts as it is, and its
/// parameters are left to expert parallelism.
template <class Backbone>
void tensor_parallel_decoder(mesh::DistributedContext& context, Backbone& model) {
  model.set_sequence_parts(context.size(mesh::axis::tp));
  std::vector<const nn::Module*> left;
  if (model.embed_tokens) {
    shard::vocab_parallel(*model.embed_tokens, context);
  }
  for (auto& [index, layer] : *model.layers) {
    shard::on_parts(*layer->input_layernorm, context);
    shard::tensor_parallel(*layer->self_attn, context);
    shard::on_parts(*layer->post_attention_layernorm, context);
    if (layer->mlp) {
      shard::tensor_parallel(*layer->mlp, context);
    }
    if (const nn::Module* mixture = mixture_of(*layer)) {
      left.push_back(mixture);
    }
  }
  if (model.norm) {
    shard::on_parts(*model.norm, context);
  }
  shard::require_tensor_layouts(model, context, left);
}

/// Throws a usage error if the backbone was built for another stage.
template <class Backbone>
void require_stage(const Backbone& model, const PipelineStageInfo& stage) {
  require(
      model.stage().current_stage == stage.current_stage && model.stage().num_stages == stage.num_stages,
      "stage: the model was built for stage {} of {}, and is to be parallelized as stage {} of {}",
      model.stage().current_stage,
      model.stage().num_stages,
      stage.current_stage,
      stage.num_stages);
}

/// All styles of a backbone for one stage.
template <class Backbone>
void parallelize_decoder_model(
    mesh::DistributedContext& context,
    Backbone& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& /*options*/) {
  require_stage(model, stage);
  // Tensor.
  tensor_parallel_decoder(context, model);
  // Expert.
  // Context.
  // Fully sharded.
}

/// The backbone's styles, and those of the head on the last stage: the vocabulary's rows are spread over tp.
template <class Backbone>
void parallelize_decoder_for_causal_lm(
    mesh::DistributedContext& context,
    ForCausalLMImpl<Backbone>& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  parallelize_decoder_model(context, *model.model, stage, options);
  if (model.lm_head) {
    // Tensor.
    shard::vocab_parallel(*model.lm_head, context);
    // Fully sharded.
  }
}

/// The backbone's styles, and those of the head on the last stage, which all ranks of tp compute.
template <class Backbone>
void parallelize_decoder_for_classification(
    mesh::DistributedContext& context,
    ForClassificationImpl<Backbone>& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  parallelize_decoder_model(context, *model.model, stage, options);
  if (model.cls_head) {
    // Tensor.
    shard::on_whole_sequences(*model.cls_head, context);
    // Fully sharded.
  }
}

/// As for classification.
template <class Backbone>
void parallelize_decoder_for_embedding(
    mesh::DistributedContext& context,
    ForEmbeddingImpl<Backbone>& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  parallelize_decoder_model(context, *model.model, stage, options);
  if (model.embedding_head) {
    // Tensor.
    shard::on_whole_sequences(*model.embedding_head, context);
    // Fully sharded.
  }
}

/// Whichever of a family's models with heads `model` is. Throws a usage error that names the family if it is none.
template <class Backbone>
void parallelize_decoder(
    const char* family, mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options) {
  if (auto* causal_lm = dynamic_cast<ForCausalLMImpl<Backbone>*>(&model)) {
    parallelize_decoder_for_causal_lm(context, *causal_lm, causal_lm->model->stage(), options);
  } else if (auto* classifier = dynamic_cast<ForClassificationImpl<Backbone>*>(&model)) {
    parallelize_decoder_for_classification(context, *classifier, classifier->model->stage(), options);
  } else if (auto* embedder = dynamic_cast<ForEmbeddingImpl<Backbone>*>(&model)) {
    parallelize_decoder_for_embedding(context, *embedder, embedder->model->stage(), options);
  } else {
    fail("model: expected a {} model with a causal-LM, classification or embedding head", family);
  }
}

}  // namespace lehr::model

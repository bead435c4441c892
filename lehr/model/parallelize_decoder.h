// How the decoder families are laid out on a mesh, written once: styles are attached to a finished model on meta, in
// the order tensor, expert, context, (activation checkpointing, which is the model's own,) fully sharded.
#pragma once

#include "lehr/base/error.h"
#include "lehr/model/heads.h"
#include "lehr/nn/moe.h"
#include "lehr/shard/expert_parallel.h"
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

/// Names the layer in errors of what is done to it.
template <class Work>
void name_layer(int64_t index, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{} (layer {})", error.what(), index));
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
    name_layer(index, [&context, &parts = *layer] {
      if (parts.self_attn) {
        shard::on_parts(*parts.input_layernorm, context);
        shard::tensor_parallel(*parts.self_attn, context);
      }
      if (parts.post_attention_layernorm) {
        shard::on_parts(*parts.post_attention_layernorm, context);
      }
      if (parts.mlp) {
        shard::tensor_parallel(*parts.mlp, context);
      }
    });
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

/// Tensor, expert and context parallelism of a backbone for one stage: all that comes before fully sharded.
template <class Backbone>
void lay_out_decoder(
    mesh::DistributedContext& context,
    Backbone& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  require_stage(model, stage);
  tensor_parallel_decoder(context, model);
  for (auto& [index, layer] : *model.layers) {
    if (nn::MoELayerImpl* mixture = mixture_of(*layer)) {
      name_layer(index, [&] { shard::parallelize_experts(context, *mixture); });
    }
  }
  if (nn::RouterLosses* losses = model.router_losses()) {
    shard::share_router_losses(context, *losses);
  }
  shard::parallelize_context(context, model, options.context_method);
}

/// The units of a backbone in the order of forward: embeddings, layers, final norm. `reads_embeddings` is the module
/// that reads the embeddings' weights too, if there is one.
template <class Backbone>
std::vector<shard::UnitModules> decoder_units(Backbone& model, std::shared_ptr<nn::Module> reads_embeddings = nullptr) {
  std::vector<shard::UnitModules> units;
  if (model.embed_tokens) {
    units.push_back({.name = "embed_tokens", .modules = {model.embed_tokens.ptr()}});
    if (reads_embeddings) {
      units.back().modules.push_back(std::move(reads_embeddings));
    }
  }
  for (auto& [index, layer] : *model.layers) {
    if (nn::named_parameters(*layer).empty()) {
      continue;  // both of its sub-blocks are no-ops
    }
    units.push_back({.name = "layers." + std::to_string(index), .modules = {layer.ptr()}});
  }
  if (model.norm) {
    units.push_back({.name = "norm", .modules = {model.norm.ptr()}});
  }
  return units;
}

/// All styles of a backbone for one stage.
template <class Backbone>
shard::FullySharded parallelize_decoder_model(
    mesh::DistributedContext& context,
    Backbone& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  lay_out_decoder(context, model, stage, options);
  return shard::fully_shard(context, model, decoder_units(model), options.fully_shard);
}

/// The backbone's styles, and those of the head on the last stage: the vocabulary's rows are spread over tp. The head
/// is gathered together with the final norm, or with the embeddings that it reads.
template <class Backbone>
shard::FullySharded parallelize_decoder_for_causal_lm(
    mesh::DistributedContext& context,
    ForCausalLMImpl<Backbone>& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  if (model.tied_table) {
    shard::vocab_parallel(*model.tied_table, context);
  }
  lay_out_decoder(context, *model.model, stage, options);
  if (!model.lm_head) {
    return shard::fully_shard(context, model, decoder_units(*model.model), options.fully_shard);
  }
  shard::vocab_parallel(*model.lm_head, context);
  const bool with_embeddings = model.model->embed_tokens && model.lm_head->segments.front()->tied() != nullptr;
  auto units = decoder_units(*model.model, with_embeddings ? model.lm_head.ptr() : nullptr);
  if (!with_embeddings) {
    units.back().modules.push_back(model.lm_head.ptr());
  }
  if (model.tied_table) {
    units.back().read.push_back(model.tied_table.ptr());
  }
  return shard::fully_shard(context, model, units, options.fully_shard);
}

/// The backbone's styles, and those of a head on the last stage that scores or embeds sequences, which all ranks of tp
/// compute.
template <class Model, class Head>
shard::FullySharded parallelize_decoder_with_head(
    mesh::DistributedContext& context,
    Model& model,
    Head head,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  lay_out_decoder(context, *model.model, stage, options);
  auto units = decoder_units(*model.model);
  if (head) {
    shard::on_whole_sequences(*head, context);
    units.back().modules.push_back(head.ptr());
  }
  return shard::fully_shard(context, model, units, options.fully_shard);
}

/// Whichever of a family's models with heads `model` is. Throws a usage error that names the family if it is none.
template <class Backbone>
shard::FullySharded parallelize_decoder(
    const char* family, mesh::DistributedContext& context, nn::Model& model, const shard::ParallelizeOptions& options) {
  if (auto* causal_lm = dynamic_cast<ForCausalLMImpl<Backbone>*>(&model)) {
    return parallelize_decoder_for_causal_lm(context, *causal_lm, causal_lm->model->stage(), options);
  }
  if (auto* classifier = dynamic_cast<ForClassificationImpl<Backbone>*>(&model)) {
    return parallelize_decoder_with_head(
        context, *classifier, classifier->cls_head, classifier->model->stage(), options);
  }
  if (auto* embedder = dynamic_cast<ForEmbeddingImpl<Backbone>*>(&model)) {
    return parallelize_decoder_with_head(
        context, *embedder, embedder->embedding_head, embedder->model->stage(), options);
  }
  fail("model: expected a {} model with a causal-LM, classification or embedding head", family);
}

}  // namespace lehr::model

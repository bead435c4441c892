// Parallelization of decoder families on a mesh: styles are attached to a complete model on meta, in the order tensor,
// expert and context parallelism, (activation checkpointing, which is part of the model,) FSDP.
#pragma once

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/model/heads.h"
#include "lehr/nn/moe.h"
#include "lehr/shard/expert_parallel.h"
#include "lehr/shard/options.h"
#include "lehr/shard/tensor_parallel.h"
#include "lehr/shard/vocab_parallel.h"

namespace lehr::model {

/// Runs `work` and appends the layer's index to its errors.
template <class Work>
void name_layer(int64_t index, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{} (layer {})", error.what(), index));
  }
}

/// Applies tensor and sequence parallelism to a decoder layer: by the overload tensor_parallel(Layer&,
/// mesh::DistributedContext&) in the layer's namespace if there is one, else by the style of each of its children.
template <class Layer>
void tensor_parallel_layer(Layer& layer, mesh::DistributedContext& context) {
  if constexpr (requires { tensor_parallel(layer, context); }) {
    tensor_parallel(layer, context);
  } else {
    shard::tensor_parallel_children(layer, context);
  }
}

/// Applies tensor and sequence parallelism to a backbone. An MoE layer computes on sequence parts as it is, and its
/// parameters are left to expert parallelism.
template <class Backbone>
void tensor_parallel_decoder(mesh::DistributedContext& context, Backbone& model) {
  if (context.size(mesh::axis::tp) > 1) {
    const mesh::Group& group = context.group(mesh::axis::tp);
    model.set_sequence_parts(
        {.count = group.size(),
         .own = [&group](const at::Tensor& whole) { return mesh::take_shard(whole, group, 1); },
         .sum = [&group](const at::Tensor& partial) { return mesh::all_reduce(partial, group); }});
  }
  std::vector<const nn::Module*> left;
  if (model.embed_tokens) {
    shard::vocab_parallel(*model.embed_tokens, context);
  }
  if (model.per_layer) {
    shard::vocab_parallel(*model.per_layer->embed_tokens_per_layer, context);
    shard::on_parts(*model.per_layer->per_layer_model_projection, context);
    shard::on_parts(*model.per_layer->per_layer_projection_norm, context);
  }
  for (auto& [index, layer] : *model.layers) {
    name_layer(index, [&context, &own = *layer] { tensor_parallel_layer(own, context); });
    for (const nn::MoELayerImpl* moe_layer : nn::moe_layers(*layer)) {
      left.push_back(moe_layer);
    }
  }
  if (model.norm) {
    shard::on_parts(*model.norm, context);
  }
  shard::require_tensor_layouts(model, context, left);
}

/// Applies tensor, expert and context parallelism to a module for multi-token prediction, like to a layer of the model.
template <class Module>
void lay_out_mtp_module(mesh::DistributedContext& context, Module& module, const shard::ParallelizeOptions& options) {
  name_layer(module.layer_index(), [&] {
    for (nn::Module* one :
         {static_cast<nn::Module*>(module.enorm.get()),
          static_cast<nn::Module*>(module.hnorm.get()),
          static_cast<nn::Module*>(module.eh_proj.get()),
          static_cast<nn::Module*>(module.norm.get())}) {
      shard::on_parts(*one, context);
    }
    tensor_parallel_layer(*module.layer, context);
    std::vector<const nn::Module*> left;
    for (nn::MoELayerImpl* moe_layer : nn::moe_layers(*module.layer)) {
      left.push_back(moe_layer);
    }
    shard::require_tensor_layouts(module, context, left);
    for (nn::MoELayerImpl* moe_layer : nn::moe_layers(*module.layer)) {
      shard::parallelize_experts(context, *moe_layer, options.expert_parts);
    }
  });
  shard::parallelize_context(context, module, options.context_method);
}

/// Throws a usage error if the backbone was built for another stage.
template <class Backbone>
void require_stage(const Backbone& model, const PipelineStageInfo& stage) {
  require(
      model.stage().current_stage == stage.current_stage && model.stage().num_stages == stage.num_stages,
      "stage: the model was built for stage {} of {}, but is parallelized as stage {} of {}",
      model.stage().current_stage,
      model.stage().num_stages,
      stage.current_stage,
      stage.num_stages);
}

/// Applies tensor, expert and context parallelism to a backbone for one stage: everything except FSDP.
template <class Backbone>
void lay_out_decoder(
    mesh::DistributedContext& context,
    Backbone& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  require(
      context.size(mesh::axis::cp) == 1 || model.hidden_states_snapshot_mode() == nn::HiddenStatesAggregationMode::no,
      "parallelism.context_parallel_degree: a snapshot of hidden states averages whole sequences, of which a rank has a "
      "part, and each rank would count a loss of it; expected 1 with hidden_states_snapshot_mode, found {}",
      context.size(mesh::axis::cp));
  require_stage(model, stage);
  tensor_parallel_decoder(context, model);
  for (auto& [index, layer] : *model.layers) {
    for (nn::MoELayerImpl* moe_layer : nn::moe_layers(*layer)) {
      name_layer(index, [&] { shard::parallelize_experts(context, *moe_layer, options.expert_parts); });
    }
  }
  if (nn::RouterLosses* losses = model.router_losses()) {
    shard::share_router_losses(context, *losses);
  }
  shard::parallelize_context(context, model, options.context_method);
  if constexpr (requires { model.rope_provider(); }) {
    shard::share_largest_position(context, model.rope_provider());
  }
}

/// The FSDP units of a backbone in the order of forward: embeddings, layers, final norm. `reads_embeddings` is the
/// module that also uses the embeddings' weights, if there is one.
template <class Backbone>
std::vector<shard::UnitModules> decoder_units(Backbone& model, std::shared_ptr<nn::Module> reads_embeddings = nullptr) {
  std::vector<shard::UnitModules> units;
  if (model.embed_tokens) {
    units.push_back({.name = "embed_tokens", .modules = {model.embed_tokens.ptr()}});
    if (reads_embeddings) {
      units.back().modules.push_back(std::move(reads_embeddings));
    }
  }
  if (model.per_layer) {
    // Two units: backward of a unit ends with the gradients of its inputs. The table's ids have none, so a unit of all
    // three would end with the projection's input, before or after the table's own gradient.
    units.push_back(
        {.name = "per_layer.embed_tokens_per_layer", .modules = {model.per_layer->embed_tokens_per_layer.ptr()}});
    units.push_back(
        {.name = "per_layer",
         .modules = {
             model.per_layer->per_layer_model_projection.ptr(), model.per_layer->per_layer_projection_norm.ptr()}});
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

/// Applies all styles to a backbone for one stage.
template <class Backbone>
shard::FullySharded parallelize_decoder_model(
    mesh::DistributedContext& context,
    Backbone& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  lay_out_decoder(context, model, stage, options);
  return shard::fully_shard(context, model, decoder_units(model), options.fully_shard);
}

/// Applies the backbone's styles, and those of the head and of multi-token prediction on the last stage. The head's
/// vocabulary is split over tp. The head is unsharded together with the final norm, or with the embeddings if it is
/// tied to them; a copy of the embeddings too, unless only multi-token prediction reads it.
template <class Backbone>
shard::FullySharded parallelize_decoder_for_causal_lm(
    mesh::DistributedContext& context,
    ForCausalLMImpl<Backbone>& model,
    const PipelineStageInfo& stage,
    const shard::ParallelizeOptions& options) {
  if (model.table_copy) {
    shard::vocab_parallel(*model.table_copy, context);
  }
  lay_out_decoder(context, *model.model, stage, options);
  if (!model.lm_head) {
    return shard::fully_shard(context, model, decoder_units(*model.model), options.fully_shard);
  }
  shard::vocab_parallel(*model.lm_head, context);
  const bool tied = model.lm_head->segments.front()->tied() != nullptr;
  const bool with_embeddings = model.model->embed_tokens && tied;
  auto units = decoder_units(*model.model, with_embeddings ? model.lm_head.ptr() : nullptr);
  if (!with_embeddings) {
    units.back().modules.push_back(model.lm_head.ptr());
  }
  if (model.table_copy && !tied) {
    units.push_back({.name = "embed_tokens", .modules = {model.table_copy.ptr()}});
  } else if (model.table_copy) {
    auto& list = model.mtp ? units.back().modules : units.back().read;
    list.push_back(model.table_copy.ptr());
  }
  for (int64_t i = 0; i < model.num_mtp_modules(); ++i) {
    auto& module = model.mtp->at(i);
    lay_out_mtp_module(context, *module, options);
    units.push_back({.name = "mtp." + std::to_string(i), .modules = {module.ptr()}});
  }
  return shard::fully_shard(context, model, units, options.fully_shard);
}

/// Applies the backbone's styles, and those of a classification or embedding head on the last stage, which all ranks of
/// tp compute redundantly.
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

/// Parallelizes any of a family's models with heads. Throws a usage error that names the family for any other model.
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

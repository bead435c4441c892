// The public names of a decoder family: its models, and the functions that lay them out on a mesh.
#pragma once

#include "lehr/mesh/distributed_context.h"
#include "lehr/model/decoder.h"
#include "lehr/model/heads.h"
#include "lehr/shard/options.h"

/// Declares the models of the family `Name` and its parallelize functions, in the namespace where it stands.
/// `NameLayer`, a module holder, and `NameLayerParameters` must be declared before. LEHR_DECODER_FAMILY(Llama3, llama3)
/// declares:
///
/// - Llama3Model: the backbone, a holder of model::DecoderImpl<Llama3Layer, Llama3LayerParameters>;
/// - Llama3ForCausalLM, Llama3ForClassification, Llama3ForEmbedding: the backbone with a head (model/heads.h);
/// - Llama3Parameters, Llama3ForCausalLMParameters, ...: the parameters that construct these four;
/// - parallelize_llama3_model(context, model, stage, options): applies the context's mesh, which must outlive the
///   result, to a backbone that was built for `stage` on meta. The trainer drives the result. All ranks must call it.
///   Throws a usage error that names the keys for sizes that the degrees do not divide, and for a stage that is not the
///   model's;
/// - parallelize_llama3_for_causal_lm, ..._for_classification, ..._for_embedding: the same for the models with a head;
/// - parallelize_llama3(context, model, options): the same for any model with a head, as TrainSpec::parallelize. Throws
///   a usage error for a model of another family.
///
/// One source file of the family defines the functions, by LEHR_DEFINE_DECODER_FAMILY of define_decoder_family.h, and
/// instantiates the backbone: template class lehr::model::DecoderImpl<Llama3Layer, Llama3LayerParameters>.
#define LEHR_DECODER_FAMILY(Name, name)                                                           \
  using Name##Model = ::lehr::model::Decoder<Name##Layer, Name##LayerParameters>;                 \
  using Name##ForCausalLM = ::lehr::model::ForCausalLM<Name##Model>;                              \
  using Name##ForClassification = ::lehr::model::ForClassification<Name##Model>;                  \
  using Name##ForEmbedding = ::lehr::model::ForEmbedding<Name##Model>;                            \
  using Name##Parameters = Name##Model::Impl::Parameters;                                         \
  using Name##ForCausalLMParameters = Name##ForCausalLM::Impl::Parameters;                        \
  using Name##ForClassificationParameters = Name##ForClassification::Impl::Parameters;            \
  using Name##ForEmbeddingParameters = Name##ForEmbedding::Impl::Parameters;                      \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_model, Name##Model, = {});                          \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_for_causal_lm, Name##ForCausalLM, = {});            \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_for_classification, Name##ForClassification, = {}); \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_for_embedding, Name##ForEmbedding, = {});           \
  ::lehr::shard::FullySharded parallelize_##name(                                                 \
      ::lehr::mesh::DistributedContext& context,                                                  \
      ::lehr::nn::Model& model,                                                                   \
      const ::lehr::shard::ParallelizeOptions& options = {})

/// The signature of a function that lays out one stage of a `Model`; for LEHR_DECODER_FAMILY only.
#define LEHR_PARALLELIZE_STAGE(function, Model, ...) \
  ::lehr::shard::FullySharded function(              \
      ::lehr::mesh::DistributedContext& context,     \
      Model::Impl& model,                            \
      const ::lehr::model::PipelineStageInfo& stage, \
      const ::lehr::shard::ParallelizeOptions& options __VA_ARGS__)

// Included by the one source file of a decoder family: the definitions of its models, functions and ModelFamily.
#pragma once

#include "lehr/model/decoder_args.h"
#include "lehr/model/decoder_descriptor.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/decoder_impl.h"
#include "lehr/model/parallelize_decoder.h"

/// Defines the functions that LEHR_DECODER_FAMILY(Name, name) declares.
#define LEHR_DEFINE_DECODER_FAMILY(Name, name)                                                                 \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_model, Name##Model, ) {                                          \
    return ::lehr::model::parallelize_decoder_model(context, model, stage, options);                           \
  }                                                                                                            \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_for_causal_lm, Name##ForCausalLM, ) {                            \
    return ::lehr::model::parallelize_decoder_for_causal_lm(context, model, stage, options);                   \
  }                                                                                                            \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_for_classification, Name##ForClassification, ) {                 \
    return ::lehr::model::parallelize_decoder_with_head(context, model, model.cls_head, stage, options);       \
  }                                                                                                            \
  LEHR_PARALLELIZE_STAGE(parallelize_##name##_for_embedding, Name##ForEmbedding, ) {                           \
    return ::lehr::model::parallelize_decoder_with_head(context, model, model.embedding_head, stage, options); \
  }                                                                                                            \
  ::lehr::shard::FullySharded parallelize_##name(                                                              \
      ::lehr::mesh::DistributedContext& context,                                                               \
      ::lehr::nn::Model& model,                                                                                \
      const ::lehr::shard::ParallelizeOptions& options) {                                                      \
    return ::lehr::model::parallelize_decoder<Name##Model>(#Name, context, model, options);                    \
  }

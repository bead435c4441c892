// Models with a head: a decoder backbone with a causal-LM or a classification head, written once for all families.
#pragma once

#include "lehr/base/error.h"
#include "lehr/model/decoder.h"
#include "lehr/nn/head.h"

namespace lehr::model {

/// Parameters of a backbone with a language-model head.
template <class BackboneParameters>
struct ForCausalLMParameters {
  BackboneParameters model;
  bool tie_word_embeddings = false;  ///< The head reads the embeddings' weights.
};

/// Parameters of a backbone with a classification head.
template <class BackboneParameters>
struct ForClassificationParameters {
  BackboneParameters model;
  int64_t num_labels;
  double classifier_dropout = 0;
};

/// A backbone, and on the last stage a head that scores labels.
template <class Backbone>
class ForCausalLMImpl : public nn::Model, public pipeline::ModuleSupportsPipelining {
 public:
  using Parameters = ForCausalLMParameters<typename Backbone::Impl::Parameters>;

  ForCausalLMImpl(
      const Parameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing) {
    require(
        !params.tie_word_embeddings || stage.num_stages == 1,
        "tie_word_embeddings: embeddings and head are on different pipeline stages, which is not supported yet; use "
        "one "
        "stage");
    model = register_module("model", Backbone(params.model, stage, hidden_states_snapshot_mode, enable_checkpointing));
    if (stage.is_current_stage_last()) {
      lm_head = register_module(
          "lm_head",
          nn::SplitLanguageModellingHead(
              params.model.vocabulary(),
              params.model.layer.hidden_size,
              nn::Init::normal(params.model.layer.initializer_range)));
      if (params.tie_word_embeddings) {
        lm_head->tie_to(*model->embed_tokens);
      }
    }
  }

  /// The backbone's results and, on the last stage when labels are given, 'logps': the per-token loss.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = model->forward(inputs);
    if (lm_head && inputs.labels.defined()) {
      outputs.logps = lm_head(outputs.hidden_states, inputs.labels);
    }
    return outputs;
  }

  at::Tensor logits(const at::Tensor& final_hidden_states) override {
    require(static_cast<bool>(lm_head), "logits: only the last stage has the head that computes them");
    return lm_head->logits(final_hidden_states);
  }
  at::ScalarType output_dtype() const override { return model->output_dtype(); }
  int64_t num_local_layers() const override { return model->num_local_layers(); }
  at::Tensor moe_tokens_per_expert() override { return model->moe_tokens_per_expert(); }
  void reset_moe_stats() override { model->reset_moe_stats(); }
  nn::RouterLosses* router_losses() override { return model->router_losses(); }

  TensorDict infer_stage_inputs_from_pipeline_inputs(const TensorDict& inputs, int64_t n_microbatches) const override {
    return model->infer_stage_inputs_from_pipeline_inputs(inputs, n_microbatches);
  }
  TensorDict infer_stage_outputs_from_pipeline_inputs(const TensorDict& inputs, int64_t n_microbatches) const override {
    TensorDict outputs = model->infer_stage_outputs_from_pipeline_inputs(inputs, n_microbatches);
    if (lm_head) {
      const at::Tensor& hidden_states = outputs.at("hidden_states");
      const auto dtype = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      outputs["logps"] =
          at::empty({hidden_states.size(0), hidden_states.size(1)}, hidden_states.options().dtype(dtype));
    }
    return outputs;
  }

  Backbone model{nullptr};
  nn::SplitLanguageModellingHead lm_head{nullptr};  // the last stage's
};

/// A backbone, and on the last stage a head that scores sequences or tokens.
template <class Backbone>
class ForClassificationImpl : public nn::Model, public pipeline::ModuleSupportsPipelining {
 public:
  using Parameters = ForClassificationParameters<typename Backbone::Impl::Parameters>;

  ForClassificationImpl(
      const Parameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing)
      : num_labels_(params.num_labels) {
    model = register_module("model", Backbone(params.model, stage, hidden_states_snapshot_mode, enable_checkpointing));
    if (stage.is_current_stage_last()) {
      cls_head = register_module(
          "cls_head",
          nn::ClassificationHead(
              params.model.layer.hidden_size,
              params.num_labels,
              params.classifier_dropout,
              nn::Init::normal(params.model.layer.initializer_range)));
    }
  }

  /// The backbone's results and, on the last stage, 'scores'.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = model->forward(inputs);
    if (cls_head) {
      outputs.scores = cls_head(outputs.hidden_states, inputs.pooling_mask);
    }
    return outputs;
  }

  at::Tensor logits(const at::Tensor&) override {
    fail("logits: this model has a classification head, it gives scores");
  }
  at::ScalarType output_dtype() const override { return model->output_dtype(); }
  int64_t num_local_layers() const override { return model->num_local_layers(); }
  at::Tensor moe_tokens_per_expert() override { return model->moe_tokens_per_expert(); }
  void reset_moe_stats() override { model->reset_moe_stats(); }
  nn::RouterLosses* router_losses() override { return model->router_losses(); }
  void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) override {
    if (cls_head) {
      cls_head->set_dropout_stream(seed, step, first_row);
    }
  }

  TensorDict infer_stage_inputs_from_pipeline_inputs(const TensorDict& inputs, int64_t n_microbatches) const override {
    return model->infer_stage_inputs_from_pipeline_inputs(inputs, n_microbatches);
  }
  TensorDict infer_stage_outputs_from_pipeline_inputs(const TensorDict& inputs, int64_t n_microbatches) const override {
    TensorDict outputs = model->infer_stage_outputs_from_pipeline_inputs(inputs, n_microbatches);
    if (cls_head) {
      const at::Tensor& hidden_states = outputs.at("hidden_states");
      const auto dtype = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      outputs["scores"] = at::empty({hidden_states.size(0), num_labels_}, hidden_states.options().dtype(dtype));
    }
    return outputs;
  }

  Backbone model{nullptr};
  nn::ClassificationHead cls_head{nullptr};  // the last stage's

 private:
  int64_t num_labels_;
};

}  // namespace lehr::model

// Models with a head: a decoder backbone with a causal-LM, a classification or an embedding head, written once for all
// families.
#pragma once

#include "lehr/base/error.h"
#include "lehr/model/decoder.h"
#include "lehr/nn/head.h"

namespace lehr::model {

/// Parameters of a backbone with a language-model head.
template <class BackboneParameters>
struct ForCausalLMParameters {
  BackboneParameters model;
  /// The head reads the embeddings' weights. Where they are on different stages, both hold them, under one name.
  bool tie_word_embeddings = false;
};

/// Parameters of a backbone with a classification head.
template <class BackboneParameters>
struct ForClassificationParameters {
  BackboneParameters model;
  int64_t num_labels;
  double classifier_dropout = 0;
};

/// Parameters of a backbone with an embedding head.
template <class BackboneParameters>
struct ForEmbeddingParameters {
  BackboneParameters model;
  std::optional<int64_t> embedding_dim = {};  ///< Width of a projection; without it, hidden states are the embeddings.
  bool normalize = false;                     ///< Embeddings get length 1.
};

/// What models with a head have in common: the backbone, and the last stage's knowledge of its own outputs.
template <class Backbone>
class WithHead : public nn::Model, public pipeline::ModuleSupportsPipelining {
 public:
  using BackboneParameters = typename Backbone::Impl::Parameters;

  WithHead(
      const BackboneParameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing)
      : model(register_module("model", Backbone(params, stage, hidden_states_snapshot_mode, enable_checkpointing))) {}

  at::Tensor logits(const at::Tensor&) override { fail("logits: this model has no language-model head"); }
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
    infer_head_output(outputs);
    return outputs;
  }

  Backbone model{nullptr};

 protected:
  /// Adds what the head gives to the announced outputs, if this stage has the head.
  virtual void infer_head_output(TensorDict& outputs) const = 0;
  /// A tensor of the type that heads give: float32, or float64 for float64 hidden states.
  static at::Tensor wide_like(const at::Tensor& hidden_states, at::IntArrayRef shape) {
    const auto dtype = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::empty(shape, hidden_states.options().dtype(dtype));
  }
};

/// A backbone, and on the last stage a head that scores labels.
template <class Backbone>
class ForCausalLMImpl : public WithHead<Backbone> {
 public:
  using Parameters = ForCausalLMParameters<typename Backbone::Impl::Parameters>;

  ForCausalLMImpl(
      const Parameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing)
      : WithHead<Backbone>(params.model, stage, hidden_states_snapshot_mode, enable_checkpointing) {
    if (stage.is_current_stage_last()) {
      lm_head = this->register_module(
          "lm_head",
          nn::SplitLanguageModellingHead(
              params.model.vocabulary(),
              params.model.layer.hidden_size,
              nn::Init::normal(params.model.layer.initializer_range)));
      if (params.tie_word_embeddings) {
        lm_head->tie_to(*embeddings(params.model));
      }
    }
  }

  /// The backbone's results and, on the last stage when labels are given, 'logps': the per-token loss.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = this->model->forward(inputs);
    if (lm_head && inputs.labels.defined()) {
      outputs.logps = lm_head(outputs.hidden_states, inputs.labels);
    }
    return outputs;
  }

  at::Tensor logits(const at::Tensor& final_hidden_states) override {
    require(static_cast<bool>(lm_head), "logits: only the last stage has the head that computes them");
    return lm_head->logits(final_hidden_states);
  }

  nn::SplitLanguageModellingHead lm_head{nullptr};  // the last stage's
  nn::SplitTokenEmbeddings tied_table{nullptr};     // that the head reads, where the embeddings are on another stage

 private:
  // The first stage's, or a second instance of the same table under the same names: initial values and checkpoints go
  // by names, so both are one tensor that two stages hold.
  nn::SplitTokenEmbeddings embeddings(const typename WithHead<Backbone>::BackboneParameters& params) {
    if (this->model->embed_tokens) {
      return this->model->embed_tokens;
    }
    tied_table = this->model->register_module(
        "embed_tokens",
        nn::SplitTokenEmbeddings(
            params.vocabulary(), params.layer.hidden_size, nn::Init::normal(params.layer.initializer_range)));
    return tied_table;
  }

 protected:
  void infer_head_output(TensorDict& outputs) const override {
    if (lm_head) {
      const at::Tensor& hidden_states = outputs.at("hidden_states");
      const int64_t tokens = hidden_states.size(1) * this->model->sequence_parts();
      outputs["logps"] = this->wide_like(hidden_states, {hidden_states.size(0), tokens});
    }
  }
};

/// A backbone, and on the last stage a head that scores sequences or tokens.
template <class Backbone>
class ForClassificationImpl : public WithHead<Backbone> {
 public:
  using Parameters = ForClassificationParameters<typename Backbone::Impl::Parameters>;

  ForClassificationImpl(
      const Parameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing)
      : WithHead<Backbone>(params.model, stage, hidden_states_snapshot_mode, enable_checkpointing),
        num_labels_(params.num_labels) {
    if (stage.is_current_stage_last()) {
      cls_head = this->register_module(
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
    nn::ModelOutputs outputs = this->model->forward(inputs);
    if (cls_head) {
      outputs.scores = cls_head(outputs.hidden_states, inputs.pooling_mask);
    }
    return outputs;
  }

  nn::ClassificationHead cls_head{nullptr};  // the last stage's

 protected:
  void infer_head_output(TensorDict& outputs) const override {
    if (cls_head) {
      const at::Tensor& hidden_states = outputs.at("hidden_states");
      outputs["scores"] = this->wide_like(hidden_states, {hidden_states.size(0), num_labels_});
    }
  }

 private:
  int64_t num_labels_;
};

/// A backbone, and on the last stage a head that gives embeddings of sequences or tokens.
template <class Backbone>
class ForEmbeddingImpl : public WithHead<Backbone> {
 public:
  using Parameters = ForEmbeddingParameters<typename Backbone::Impl::Parameters>;

  ForEmbeddingImpl(
      const Parameters& params,
      const PipelineStageInfo& stage,
      HiddenStatesAggregationMode hidden_states_snapshot_mode,
      ActivationCheckpointing enable_checkpointing)
      : WithHead<Backbone>(params.model, stage, hidden_states_snapshot_mode, enable_checkpointing),
        width_(params.embedding_dim.value_or(params.model.layer.hidden_size)) {
    if (stage.is_current_stage_last()) {
      embedding_head = this->register_module(
          "embedding_head",
          nn::EmbeddingHead(
              params.model.layer.hidden_size,
              params.embedding_dim,
              params.normalize,
              nn::Init::normal(params.model.layer.initializer_range)));
    }
  }

  /// The backbone's results and, on the last stage, 'embeddings'.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = this->model->forward(inputs);
    if (embedding_head) {
      outputs.embeddings = embedding_head(outputs.hidden_states, inputs.pooling_mask);
    }
    return outputs;
  }

  nn::EmbeddingHead embedding_head{nullptr};  // the last stage's

 protected:
  void infer_head_output(TensorDict& outputs) const override {
    if (embedding_head) {
      const at::Tensor& hidden_states = outputs.at("hidden_states");
      outputs["embeddings"] = this->wide_like(hidden_states, {hidden_states.size(0), width_});
    }
  }

 private:
  int64_t width_;
};

}  // namespace lehr::model

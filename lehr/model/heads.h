// Models with a head, for all families: a decoder backbone with a causal-LM, a classification or an embedding head.
#pragma once

#include "lehr/base/error.h"
#include "lehr/model/decoder.h"
#include "lehr/model/multi_token_prediction.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/head.h"

namespace lehr::model {

/// Parameters of a backbone with a language-model head.
template <class BackboneParameters>
struct ForCausalLMParameters {
  BackboneParameters model;
  /// The head uses the embeddings' weights. If they are on different stages, both hold them under one name.
  bool tie_word_embeddings = false;
  /// Modules for multi-token prediction. They use the embeddings, too.
  std::optional<MtpParameters<decltype(BackboneParameters::layer)>> mtp = {};
  std::optional<double> logit_softcap = {};  ///< Of the logits (ops/logit_softcap.h).
};

/// Parameters of a backbone with a classification head.
template <class BackboneParameters>
struct ForClassificationParameters {
  BackboneParameters model;
  int64_t num_labels;
  double classifier_dropout = 0;
  bool per_token = false;   ///< A label for each token, not for each sequence.
  bool score_bias = false;  ///< A bias for each label.
};

/// Parameters of a backbone with an embedding head.
template <class BackboneParameters>
struct ForEmbeddingParameters {
  BackboneParameters model;
  std::optional<int64_t> embedding_dim = {};  ///< Width of a projection; without it, the hidden states are the
                                              ///< embeddings.
  bool normalize = false;                     ///< Normalize embeddings to length 1.
};

/// Base class of models with a head: the backbone, and the inference of the last stage's outputs.
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
  at::Tensor moe_tokens_per_expert() override { return nn::moe_tokens_per_expert(*this); }
  void reset_moe_stats() override { nn::reset_moe_stats(*this); }
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
  /// Adds the head's outputs to the inferred ones, if this stage has the head.
  virtual void infer_head_output(TensorDict& outputs) const = 0;
  /// A tensor of the heads' output dtype: float32, or float64 for float64 hidden states.
  static at::Tensor wide_like(const at::Tensor& hidden_states, at::IntArrayRef shape) {
    const auto dtype = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::empty(shape, hidden_states.options().dtype(dtype));
  }
};

/// A backbone, and on the last stage a language-modelling head.
template <class Backbone>
class ForCausalLMImpl : public WithHead<Backbone> {
 public:
  using Parameters = ForCausalLMParameters<typename Backbone::Impl::Parameters>;
  using MtpModules = MtpModulesImpl<typename Backbone::Impl::LayerHolder, typename Backbone::Impl::ParametersOfLayer>;

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
              nn::Init::normal(params.model.layer.initializer_range),
              params.logit_softcap));
      if (params.tie_word_embeddings) {
        lm_head->tie_to(*embeddings(params.model));
      }
      if (params.mtp) {
        embeddings(params.model);
        mtp = this->register_module("mtp", std::make_shared<MtpModules>(*params.mtp, params.model.norm_weight));
        for (nn::MoELayerImpl* moe_layer : nn::moe_layers(*mtp)) {
          this->model->share_losses(*moe_layer);
        }
      }
    }
  }

  /// Returns the backbone's outputs and, on the last stage if labels are given, 'logps': the NLL per token. With the
  /// results of a teacher also `distilled`; with future_ids, and modules that use them, also `future_nll`.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = this->model->forward(inputs);
    if (!lm_head || !inputs.labels.defined()) {
      return outputs;
    }
    const bool ahead = mtp && inputs.future_ids.defined();
    at::Tensor hidden_states = outputs.hidden_states, labels = inputs.labels;
    if (ahead) {
      // The head is called once for all depths: with FSDP, each call unshards its weights.
      labels = at::cat({inputs.labels.unsqueeze(2), inputs.future_labels}, 2);
      hidden_states = predict_ahead(inputs, outputs);
    }
    at::Tensor losses =
        inputs.distillation ? distil(hidden_states, labels, inputs, outputs) : lm_head(hidden_states, labels);
    if (ahead) {
      outputs.future_nll = losses.narrow(2, 1, num_mtp_modules()).mean(2);
      losses = losses.select(2, 0);
    }
    if (inputs.distillation) {
      outputs.distilled.loss = losses;
    } else {
      outputs.nll() = losses;
    }
    return outputs;
  }

  at::Tensor logits(const at::Tensor& final_hidden_states) override {
    require(static_cast<bool>(lm_head), "logits: only the last stage has the language-modelling head");
    return lm_head(final_hidden_states, /*labels=*/at::Tensor());
  }

  at::Tensor head_weight() override {
    require(static_cast<bool>(lm_head), "head_weight: only the last stage has the language-modelling head");
    return lm_head->whole_weight();
  }

  std::optional<double> head_softcap() const override { return lm_head ? lm_head->softcap() : std::nullopt; }

  int64_t num_mtp_modules() const override { return mtp ? static_cast<int64_t>(mtp->size()) : 0; }

  nn::SplitLanguageModellingHead lm_head{nullptr};  // last stage only
  nn::SplitTokenEmbeddings table_copy{nullptr};     // if the embeddings are on another stage, and a tied head or
                                                    // multi-token prediction needs them here
  std::shared_ptr<MtpModules> mtp;                  // last stage only; null without multi-token prediction

 private:
  // Returns the hidden states from which each position predicts the next token and those after it, (B, T, 1 + D, H).
  // The embeddings are looked up once for all depths.
  at::Tensor predict_ahead(const nn::ModelInputs& inputs, const nn::ModelOutputs& outputs) {
    const nn::SplitTokenEmbeddings& table = table_copy ? table_copy : this->model->embed_tokens;
    const at::Tensor embeddings = scaled_embeddings(table(inputs.future_ids), this->model->embedding_factor());
    return mtp->forward(
        outputs.hidden_states,
        embeddings,
        this->model->position_embeddings(inputs, outputs.hidden_states),
        nn::with_cumulative_lengths(inputs.attention_mask, outputs.hidden_states.size(0)),
        this->model->checkpointing());
  }

  // Returns the head's losses, and sets the other results of the comparison with the teacher.
  at::Tensor distil(
      const at::Tensor& hidden_states,
      const at::Tensor& labels,
      const nn::ModelInputs& inputs,
      nn::ModelOutputs& outputs) {
    ops::LinearKl values;
    nn::Distilled& distilled = outputs.distilled;
    const at::Tensor losses = lm_head(hidden_states, labels, *inputs.distillation, values);
    distilled.kl = values.kl;
    distilled.agrees = values.agrees;
    outputs.nll() = values.nll;
    if (distilled.cosine_distance.defined()) {
      distilled.cosine_distance =
          nn::mask_ignored_labels(lm_head->whole_sequence(distilled.cosine_distance), inputs.labels);
    }
    return losses;
  }

  // The first stage's embeddings, or a second instance of the same table with the same names: initialization and
  // checkpoints go by name, so both are one tensor that two stages hold.
  nn::SplitTokenEmbeddings embeddings(const typename WithHead<Backbone>::BackboneParameters& params) {
    if (this->model->embed_tokens) {
      return this->model->embed_tokens;
    }
    if (!table_copy) {
      table_copy = this->model->register_module(
          "embed_tokens",
          nn::SplitTokenEmbeddings(
              params.vocabulary(), params.layer.hidden_size, nn::Init::normal(params.layer.initializer_range)));
    }
    return table_copy;
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

/// Its holder.
template <class Backbone>
class ForCausalLM : public nn::ModuleHolder<ForCausalLMImpl<Backbone>> {
 public:
  using nn::ModuleHolder<ForCausalLMImpl<Backbone>>::ModuleHolder;
  using Impl = ForCausalLMImpl<Backbone>;
};

/// A backbone, and on the last stage a head that classifies sequences or tokens.
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
        num_labels_(params.num_labels),
        per_token_(params.per_token) {
    if (stage.is_current_stage_last()) {
      cls_head = this->register_module(
          "cls_head",
          nn::ClassificationHead(
              params.model.layer.hidden_size,
              params.num_labels,
              params.classifier_dropout,
              nn::Init::normal(params.model.layer.initializer_range),
              params.score_bias));
    }
  }

  /// Returns the backbone's outputs and, on the last stage, 'scores'.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = this->model->forward(inputs);
    if (cls_head) {
      outputs.scores = cls_head(outputs.hidden_states, inputs.pooling_mask);
    }
    return outputs;
  }

  nn::ClassificationHead cls_head{nullptr};  // last stage only

 protected:
  void infer_head_output(TensorDict& outputs) const override {
    if (cls_head) {
      const at::Tensor& hidden_states = outputs.at("hidden_states");
      std::vector<int64_t> shape{hidden_states.size(0)};
      if (per_token_) {
        shape.push_back(hidden_states.size(1) * this->model->sequence_parts());
      }
      shape.push_back(num_labels_);
      outputs["scores"] = this->wide_like(hidden_states, shape);
    }
  }

 private:
  int64_t num_labels_;
  bool per_token_;
};

/// Its holder.
template <class Backbone>
class ForClassification : public nn::ModuleHolder<ForClassificationImpl<Backbone>> {
 public:
  using nn::ModuleHolder<ForClassificationImpl<Backbone>>::ModuleHolder;
  using Impl = ForClassificationImpl<Backbone>;
};

/// A backbone, and on the last stage a head that embeds sequences or tokens.
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

  /// Returns the backbone's outputs and, on the last stage, 'embeddings'.
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs = this->model->forward(inputs);
    if (embedding_head) {
      outputs.embeddings = embedding_head(outputs.hidden_states, inputs.pooling_mask);
    }
    return outputs;
  }

  nn::EmbeddingHead embedding_head{nullptr};  // last stage only

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

/// Its holder.
template <class Backbone>
class ForEmbedding : public nn::ModuleHolder<ForEmbeddingImpl<Backbone>> {
 public:
  using nn::ModuleHolder<ForEmbeddingImpl<Backbone>>::ModuleHolder;
  using Impl = ForEmbeddingImpl<Backbone>;
};

}  // namespace lehr::model

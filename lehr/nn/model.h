// The interface of a model for training, evaluation and generation, independent of its family.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/nn/distillation.h"
#include "lehr/nn/dropout.h"
#include "lehr/nn/hidden_states_aggregator.h"
#include "lehr/nn/kv_cache.h"
#include "lehr/nn/module.h"
#include "lehr/nn/router_losses.h"
#include "lehr/ops/attention/attention.h"

namespace lehr::nn {

/// Arguments of a model's forward, by name: `model->forward({.input_ids = ids, .labels = labels})`. Tensors that a
/// stage does not use may be undefined. B batch, T tokens, H hidden size, L layers.
struct ModelInputs {
  at::Tensor input_ids;               ///< (B, T) int64; input of the first stage.
  at::Tensor hidden_states;           ///< (B, T, H); output of the previous stage, for all stages except the first.
  at::Tensor position_ids;            ///< (B, T) int64; default 0..T-1, after the cached positions.
  at::Tensor hidden_states_snapshot;  ///< (l, B, H); collected by the previous stages.
  at::Tensor hidden_states_agg_mask;  ///< (B, T); the tokens that snapshots average over.
  at::Tensor labels;                  ///< (B, T) int64, already shifted, -100 ignored; for the causal-LM head.
  at::Tensor future_ids;     ///< (B, T, D) int64; the input_ids 1, ..., D positions later, for num_mtp_modules().
  at::Tensor future_labels;  ///< (B, T, D) int64; the labels there, -100 ignored. With future_ids.
  at::Tensor pooling_mask;   ///< (B, T); the tokens that a classification or embedding head uses.
  ops::AttentionMask attention_mask;  ///< Padding and document borders; attention is always causal.
  KeyValueCaches* caches = nullptr;   ///< One cache per local layer; generation only.
  std::vector<at::Tensor>* layer_inputs =
      nullptr;  ///< If set, receives the input (B, T, H) of each local layer, in order.
  std::vector<at::Tensor>* layer_outputs = nullptr;              ///< The same for the outputs, before the final norm.
  std::shared_ptr<const DistillationTargets> distillation = {};  ///< For a causal LM, with labels.
  std::map<std::string, at::Tensor> cross_layer = {};  ///< What the previous stage has sent besides hidden states
                                                       ///< and snapshots (model/cross_layer_inputs.h).
  at::Tensor token_mask = {};  ///< (B, T) bool, false for padding, which then is not in router losses and in the tokens
                               ///< per expert; undefined: all positions count.

  /// Sets what a stage receives, which is to_dict() of the outputs of the previous one.
  void receive(std::map<std::string, at::Tensor> tensors) {
    const auto take = [&tensors](const char* name) {
      auto node = tensors.extract(name);
      return node.empty() ? at::Tensor() : std::move(node.mapped());
    };
    hidden_states = take("hidden_states");
    hidden_states_snapshot = take("hidden_states_snapshot");
    cross_layer = std::move(tensors);
  }
};

/// Results of a model's forward; those that do not apply are undefined.
struct ModelOutputs {
  at::Tensor hidden_states;           ///< (B, T, H); after the final norm on the last stage.
  at::Tensor hidden_states_snapshot;  ///< (l, B, H).
  at::Tensor logps;                   ///< nll() under d9d's name, although log-probabilities have the opposite sign.
  at::Tensor scores;                  ///< (N, num_labels), or (B, T, num_labels) if not pooled; float32 or float64.
  at::Tensor embeddings;              ///< (N, E), or (B, T, E) if not pooled; float32 or float64.
  Distilled distilled = {};           ///< If the inputs have distillation; nll() then has no gradient.
  std::map<std::string, at::Tensor> cross_layer = {};  ///< What the next stage needs besides hidden states and
                                                       ///< snapshots (model/cross_layer_inputs.h).
  at::Tensor future_nll = {};  ///< (B, T); if the inputs have future_ids: the mean over D of the NLL of the
                               ///< future labels, 0 where one is ignored. Float32 or float64.

  /// (B, T) negative log-likelihood of the labels per token, float32 or float64; 0 where there is no label.
  const at::Tensor& nll() const { return logps; }
  at::Tensor& nll() { return logps; }

  /// The defined results by name, as infer_stage_outputs_from_pipeline_inputs announces them.
  std::map<std::string, at::Tensor> to_dict() const {
    std::map<std::string, at::Tensor> dict{
        {"hidden_states", hidden_states},
        {"hidden_states_snapshot", hidden_states_snapshot},
        {"logps", logps},
        {"scores", scores},
        {"embeddings", embeddings}};
    dict.insert(cross_layer.begin(), cross_layer.end());
    std::erase_if(dict, [](const auto& entry) { return !entry.second.defined(); });
    return dict;
  }
};

/// One stage of a model with its head.
class Model : public Module {
 public:
  /// Runs the layers of this stage and, on the last one, the head. Throws a usage error that names an input which the
  /// stage needs and `inputs` lacks.
  virtual ModelOutputs forward(const ModelInputs& inputs) = 0;
  /// All logits of a causal language model, (B, T, V), from the final hidden states. With sequence parallelism those
  /// are this rank's part (B, T/tp, H), and all ranks of tp must call. Throws a usage error for other heads.
  virtual at::Tensor logits(const at::Tensor& final_hidden_states) = 0;
  /// The weight (V, H) of a causal language model's head. Throws a usage error for other heads.
  virtual at::Tensor head_weight() { fail("head_weight: this model has no language-model head"); }
  /// The softcap of that head's logits, which logits() applies; nothing for other heads.
  virtual std::optional<double> head_softcap() const { return std::nullopt; }
  /// The dtype of the hidden states that this stage returns.
  virtual at::ScalarType output_dtype() const = 0;
  /// Number of layers in this stage, which is the number of caches for generation.
  virtual int64_t num_local_layers() const = 0;
  /// Tokens per expert since the last reset, (MoE layers, E) int64; undefined without experts.
  virtual at::Tensor moe_tokens_per_expert() { return {}; }
  /// Sets those counts to zero.
  virtual void reset_moe_stats() {}
  /// Number of modules for multi-token prediction, D, of this stage, which need future_ids in training; 0 without.
  virtual int64_t num_mtp_modules() const { return 0; }
  /// The losses of all routers; null without experts.
  virtual RouterLosses* router_losses() { return nullptr; }
  /// Selects the dropout masks of the next forward, whose sequences begin at index `first_row` of the step's batch:
  /// masks depend on the seed, the step and that index, not on the micro-batch size. Applies to every DropoutModule.
  void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) {
    nn::set_dropout_stream(*this, seed, step, first_row);
  }
};

}  // namespace lehr::nn

// What a trainer, an evaluator or a generator needs of a model, whatever its family.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/nn/hidden_states_aggregator.h"
#include "lehr/nn/kv_cache.h"
#include "lehr/nn/module.h"
#include "lehr/nn/router_losses.h"
#include "lehr/ops/attention.h"

namespace lehr::nn {

/// Arguments of a model's forward, by name: `model->forward({.input_ids = ids, .labels = labels})`.
/// What a stage does not need may be left undefined. B batch, T tokens, H hidden size, L layers.
struct ModelInputs {
  at::Tensor input_ids;               ///< (B, T) int64; the first stage's input.
  at::Tensor hidden_states;           ///< (B, T, H); what the stage before gave, for all stages but the first.
  at::Tensor position_ids;            ///< (B, T) int64; 0..T-1 (after what a cache holds) when not given.
  at::Tensor hidden_states_snapshot;  ///< (l, B, H); collected by the stages before.
  at::Tensor hidden_states_agg_mask;  ///< (B, T); the tokens that snapshots average over.
  at::Tensor labels;                  ///< (B, T) int64, already shifted, -100 ignored; the causal-LM head's.
  at::Tensor pooling_mask;            ///< (B, T); the tokens that the classification head scores.
  ops::AttentionMask attention_mask;  ///< Padding and document borders; causal order is always kept.
  KeyValueCaches* caches = nullptr;   ///< One cache a local layer; generation only.
  std::vector<at::Tensor>* layer_inputs =
      nullptr;  ///< If given, gets the input (B, T, H) of each local layer, in order.
};

/// Results of a model's forward; what does not apply is undefined.
struct ModelOutputs {
  at::Tensor hidden_states;           ///< (B, T, H); after the final norm on the last stage.
  at::Tensor hidden_states_snapshot;  ///< (l, B, H).
  at::Tensor logps;                   ///< (B, T) per-token negative log-likelihood of the labels, float32 or float64.
  at::Tensor scores;                  ///< (N, num_labels), float32 or float64.

  /// What is defined, by name: as infer_stage_outputs_from_pipeline_inputs announces it.
  std::map<std::string, at::Tensor> to_dict() const {
    std::map<std::string, at::Tensor> dict{
        {"hidden_states", hidden_states},
        {"hidden_states_snapshot", hidden_states_snapshot},
        {"logps", logps},
        {"scores", scores}};
    std::erase_if(dict, [](const auto& entry) { return !entry.second.defined(); });
    return dict;
  }
};

/// One stage of a model with its head.
class Model : public Module {
 public:
  virtual ModelOutputs forward(const ModelInputs& inputs) = 0;
  /// All logits of a causal language model, (B, T, V), from the final hidden states. Usage error for other heads.
  virtual at::Tensor logits(const at::Tensor& final_hidden_states) = 0;
  /// The type of the hidden states that this stage gives.
  virtual at::ScalarType output_dtype() const = 0;
  /// Number of layers in this stage, which is the number of caches that generation needs.
  virtual int64_t num_local_layers() const = 0;
  /// Tokens that each expert got since the last reset, (mixtures, E) int64; undefined without experts.
  virtual at::Tensor moe_tokens_per_expert() { return {}; }
  virtual void reset_moe_stats() {}
  /// The losses over all mixtures; null without experts.
  virtual RouterLosses* router_losses() { return nullptr; }
  /// Names the dropout masks of the next forward, whose rows begin at `first_row` of the step's batch: masks depend on
  /// the seed, the step and the row, not on how the batch is cut.
  virtual void set_dropout_stream(uint64_t /*seed*/, uint64_t /*step*/, int64_t /*first_row*/) {}
};

}  // namespace lehr::nn

// The properties of a model before it is built: its shape, its size and its stored names.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/config/node.h"
#include "lehr/descriptor/block_account.h"
#include "lehr/descriptor/block_config.h"
#include "lehr/descriptor/head.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/model.h"
#include "lehr/pipeline/stage.h"
#include "lehr/state/state_map.h"

namespace lehr::descriptor {

class ModelDescriptor;

/// Overrides of a model's shape: the keys of [model.args], with the names of Hugging Face's config.json.
struct ModelOverrides {
  std::optional<int64_t> vocab_size;
  std::optional<int64_t> hidden_size;
  std::optional<int64_t> intermediate_size;
  std::optional<int64_t> num_hidden_layers;
  std::optional<int64_t> num_attention_heads;
  std::optional<int64_t> num_key_value_heads;
  std::optional<int64_t> head_dim;
  std::optional<int64_t> max_position_embeddings;
  std::optional<double> rope_theta;
  std::optional<double> rms_norm_eps;
  std::optional<double> initializer_range;
  std::optional<bool> tie_word_embeddings;
  std::optional<int64_t> num_experts;
  std::optional<int64_t> num_experts_per_tok;
  std::optional<int64_t> moe_intermediate_size;
  std::optional<bool> norm_topk_prob;
  std::optional<int64_t> decoder_sparse_step;
  std::optional<bool> expert_bias;
  std::vector<int64_t> mlp_only_layers;  ///< Empty: unchanged.
  std::map<std::string, int64_t> split_vocab_size;
  std::vector<std::string> split_vocab_order;
  Node config_keys = Node::make_table();  ///< Other keys of config.json, which the family reads.
  void fields(FieldVisitor& v);
};

/// Options for building one stage of a model.
struct BuildOptions {
  pipeline::PipelineStageInfo stage = {};
  nn::HiddenStatesAggregationMode hidden_states_snapshot_mode = nn::HiddenStatesAggregationMode::no;
  nn::ActivationCheckpointing checkpointing = {};
  int64_t num_virtual_layers_pre =
      0;  ///< Layers that count for the embeddings on the first stage: see distribute_layers_for_pipeline_stage.
  int64_t num_virtual_layers_post = 0;  ///< The same for the last stage.
};

/// The layout of an MoE layer's experts in a checkpoint: E experts of inner width I, hidden size H.
enum class ExpertLayout {
  /// One tensor per expert and projection, as in most checkpoints on the Hub: mlp.experts.3.gate_proj.weight (I, H),
  /// ...
  per_expert,
  /// As in transformers 5's modules: mlp.experts.gate_up_proj (E, 2I, H), gates first (up_proj (E, I, H), without
  /// gates), and mlp.experts.down_proj (E, H, I).
  fused,
};

/// Returns the layout of a checkpoint with these names: fused if it has a tensor ...experts.gate_up_proj or
/// ...experts.down_proj, per_expert otherwise.
ExpertLayout expert_layout_of(const std::vector<std::string>& stored_names);

/// Sizes for the start-up report and the throughput meter.
struct ModelCounts {
  int64_t num_parameters = 0;   ///< All distinct parameters; tied ones once.
  int64_t flops_per_token = 0;  ///< torchtitan's formula: 6 per active weight and, per layer, head and position, 6 per
                                ///< element of a query and of a value: attention without a causal mask.
  int64_t causal_flops_per_token = 0;  ///< The same with causal attention.
  /// The part of attention for one query and one key, over all layers and heads, forward and backward: 6 per layer,
  /// head, and element of a query and of a value (12 per element of a head if both have the same size).
  int64_t attention_flops_per_pair = 0;
  /// The part of causal_flops_per_token of each layer, in order; the rest is the head's. Empty if a family does not
  /// provide it: then its layers cannot be balanced over stages by cost.
  std::vector<int64_t> layer_flops_per_token = {};
  /// Elements per token in the cache of each layer: a key and a value per KV head; 0 without attention.
  std::vector<int64_t> kv_cache_per_token = {};
};

/// The shape of one model: a family's parameters and the properties derived from them.
class ModelArgs {
 public:
  virtual ~ModelArgs() = default;

  /// Hugging Face's model_type, such as "qwen3".
  virtual std::string model_type() const = 0;
  virtual Head head() const = 0;
  /// Replaces the head by a classification head.
  virtual void set_classification(int64_t num_labels, double dropout) = 0;
  /// Replaces the head by one that classifies tokens.
  virtual void set_token_classification(int64_t num_labels, double dropout) = 0;
  /// Replaces the head by an embedding head, whose embeddings are the final hidden states.
  virtual void set_embedding() = 0;
  virtual int64_t num_labels() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_position_ids() const = 0;
  /// True if some of its layers have experts.
  virtual bool has_experts() const { return false; }
  /// Whether the model keeps the modules for multi-token prediction that its config.json counts: whether they are
  /// built, counted, loaded and stored. By default they are left out. Families without such modules ignore it.
  virtual void keep_mtp_modules(bool /*keep*/) {}
  virtual bool keeps_mtp_modules() const { return false; }
  /// Number of modules for multi-token prediction that build() makes: 0 unless they are kept.
  virtual int64_t num_mtp_modules() const { return 0; }
  virtual std::optional<int64_t> pad_token_id() const = 0;
  virtual std::vector<int64_t> eos_token_ids() const = 0;
  /// Sets the special token ids of the exported config.json.
  virtual void set_special_tokens(
      std::optional<int64_t> bos, std::optional<int64_t> eos, std::optional<int64_t> pad) = 0;
  /// Sets the padding token of the exported config.json.
  virtual void set_pad_token(int64_t pad) = 0;
  /// Changes the shape. Call check() after all changes.
  virtual void apply(const ModelOverrides& overrides) = 0;
  /// Throws a usage error that names the field, prefixed with `where`, for an inconsistent shape.
  virtual void check(const std::string& where) const = 0;

  /// Returns one block config per layer; empty (the default) for a family without block configs.
  virtual std::vector<BlockConfig> block_configs() const { return {}; }
  /// True if its layers have block configs of their own.
  virtual bool is_heterogeneous() const { return false; }
  /// Sets the block config of each layer; their number becomes the number of layers. Call check() afterwards. The
  /// default throws a usage error, for a family whose layers cannot differ.
  virtual void set_block_configs(std::vector<BlockConfig> blocks);
  /// True if the block config of a layer may give its attention a window of its own. The default is that of a family
  /// whose attention has no windows.
  virtual bool layers_may_have_windows() const { return false; }
  /// Gives layer i + count the settings of layer i, for a model with `count` more layers before layer 0. The default
  /// does nothing, for a family whose layers differ in their block configs only.
  virtual void shift_layers(int64_t /*count*/) {}
  /// Sizes for account_for; nullopt (the default) for a family without closed-form accounting.
  virtual std::optional<DecoderForm> decoder_form() const { return std::nullopt; }

  /// Parameters and FLOPs per token in training at this sequence length (torchtitan's name).
  virtual ModelCounts get_nparams_and_flops(int64_t seq_len) const = 0;
  /// Builds one stage on meta.
  virtual std::shared_ptr<nn::Model> build(const BuildOptions& options) const = 0;
  /// Returns the map from a checkpoint's tensors, under Hugging Face's names, to the parameters of the whole model, in
  /// the model's order; its inverse is the export. Families without experts ignore the layout.
  virtual state::StateMap state_map(ExpertLayout layout) const = 0;
  /// The beginning of the names of the backbone's tensors in a checkpoint of a model with a head. transformers'
  /// modules, after which PEFT names adapters, have "model." in any case.
  virtual std::string backbone_prefix() const { return "model."; }
  /// Returns the map from a checkpoint's tensors to those of state_map, of which some are copies: a checkpoint is
  /// written with them, and read without. Empty (the default) if there are none.
  virtual state::StateMap stored_copies() const { return {}; }
  /// Returns the content of config.json; `dtype` is torch's name of the weights' dtype.
  virtual Node to_hf_config(const std::string& dtype) const = 0;
};

/// A model family, an entry of ModelFamilies.
struct ModelFamily {
  std::string name;                         ///< The value of model.name, such as "qwen3".
  std::vector<std::string> hf_model_types;  ///< The model_type values of config.json that this family reads.
  std::map<std::string, std::function<std::unique_ptr<ModelArgs>()>> flavors;  ///< Known sizes by name.
  std::function<std::unique_ptr<ModelArgs>(const Node& config)> from_hf_config;
  std::shared_ptr<const ModelDescriptor> descriptor = {};  ///< Null if the family has no descriptor.

  /// Returns the shape of a flavor. Throws a usage error that lists the flavors if it is unknown.
  std::unique_ptr<ModelArgs> from_flavor(const std::string& flavor) const;
  /// Returns the shape that `folder`/config.json describes. `folder` may be the file itself.
  std::unique_ptr<ModelArgs> from_hf_folder(const std::filesystem::path& folder) const;
  /// Returns the shape whose config.json is that of `args` with these entries; keys that decide before them are left
  /// out (layer_types beside sliding_window_pattern). Throws a usage error, which names the key as one of `table`, for
  /// a key without effect: the family does not read it, or it is not part of the shape.
  std::unique_ptr<ModelArgs> with_config_keys(const ModelArgs& args, const Node& keys, const std::string& table) const;
};

/// The model families of a program; a plain value, constructed at program start.
class ModelFamilies {
 public:
  /// Throws a usage error if there is already a family with this name, or one that reads the same model_type.
  void add(ModelFamily family);
  /// The names of all families, in the order in which they were added.
  std::vector<std::string> names() const;
  /// Throws a usage error that lists the known names if the name is unknown.
  const ModelFamily& at(const std::string& name) const;
  /// Returns the family that reads the model_type of `folder`/config.json. Throws a usage error that lists the known
  /// ones.
  const ModelFamily& of_hf_folder(const std::filesystem::path& folder) const;
  /// Returns the shape that `folder`/config.json describes, by its model_type. `folder` may be the file itself.
  std::unique_ptr<ModelArgs> from_hf_folder(const std::filesystem::path& folder) const;
  /// Returns the shape of a flavor. Throws a usage error that lists the family's flavors if it is unknown.
  std::unique_ptr<ModelArgs> from_flavor(const std::string& family, const std::string& flavor) const;
  /// Returns the descriptor of the family `name`. Throws a usage error that lists the known names, or states that the
  /// family has no descriptor.
  const ModelDescriptor& descriptor(const std::string& name) const;
  /// The same for the family that reads `folder`/config.json.
  const ModelDescriptor& descriptor_of_hf_folder(const std::filesystem::path& folder) const;

 private:
  std::vector<ModelFamily> families_;
};

}  // namespace lehr::descriptor

// What a tool must know of a model before it is built: its shape, its size, its names on disk.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/fields.h"
#include "lehr/descriptor/block_account.h"
#include "lehr/descriptor/block_config.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/model.h"
#include "lehr/pipeline/stage.h"
#include "lehr/state/state_map.h"

namespace lehr {
class Node;
}

namespace lehr::descriptor {

class ModelDescriptor;

/// Changes to a model's shape from a config: the keys of [model.args], named as in Hugging Face's config.json.
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
  std::vector<int64_t> mlp_only_layers;  ///< Empty: those of the flavor or folder.
  std::map<std::string, int64_t> split_vocab_size;
  std::vector<std::string> split_vocab_order;
  void fields(FieldVisitor& v);
};

/// What stands on a model's hidden states.
enum class Head { causal_lm, classification, embedding };

/// How one stage of a model is to be built.
struct BuildOptions {
  pipeline::PipelineStageInfo stage = {};
  nn::HiddenStatesAggregationMode hidden_states_snapshot_mode = nn::HiddenStatesAggregationMode::no;
  nn::ActivationCheckpointing checkpointing = {};
  int64_t num_virtual_layers_pre =
      0;  ///< Layers that the first stage has less: see distribute_layers_for_pipeline_stage.
  int64_t num_virtual_layers_post = 0;  ///< The same for the last stage.
};

/// How a checkpoint keeps the experts of a mixture, E of inner width I for hidden size H.
enum class ExpertLayout {
  /// A tensor an expert and projection, as most checkpoints on the Hub: mlp.experts.3.gate_proj.weight (I, H), ...
  per_expert,
  /// As transformers 5 has them in memory: mlp.experts.gate_up_proj (E, 2I, H), gates first, and mlp.experts.down_proj
  /// (E, H, I).
  fused,
};

/// The layout of a checkpoint with these names: fused if it has a tensor ...mlp.experts.gate_up_proj or
/// ...mlp.experts.down_proj, per_expert otherwise.
ExpertLayout expert_layout_of(const std::vector<std::string>& stored_names);

/// Sizes that a start-up report and a throughput meter need.
struct ModelCounts {
  int64_t num_parameters = 0;  ///< All distinct parameters; tied ones once.
  int64_t flops_per_token =
      0;  ///< torchtitan's: 6 a weight used and 6 a layer, head dimension and position, not causal.
  int64_t causal_flops_per_token = 0;  ///< The same with each token attending to the positions before it only.
  /// What of causal_flops_per_token is each layer's, in order; the rest is the head's. Empty where a family does not
  /// say: then its layers cannot be spread over stages by cost.
  std::vector<int64_t> layer_flops_per_token = {};
  /// Elements that a token leaves in the cache of each layer: a key and a value for each KV head; 0 without attention.
  std::vector<int64_t> kv_cache_per_token = {};
};

/// The shape of one model: a family's parameters and what follows from them.
class ModelArgs {
 public:
  virtual ~ModelArgs() = default;

  /// Hugging Face's model_type, as "qwen3".
  virtual std::string model_type() const = 0;
  virtual Head head() const = 0;
  /// Puts a classification head on the model.
  virtual void set_classification(int64_t num_labels, double dropout) = 0;
  virtual int64_t num_labels() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_position_ids() const = 0;
  /// Whether some of its layers have experts, whose use can be balanced.
  virtual bool has_experts() const { return false; }
  virtual std::optional<int64_t> pad_token_id() const = 0;
  virtual std::vector<int64_t> eos_token_ids() const = 0;
  /// Ids that the exported config.json names.
  virtual void set_special_tokens(
      std::optional<int64_t> bos, std::optional<int64_t> eos, std::optional<int64_t> pad) = 0;
  /// Changes the shape. Call check() when all changes are made.
  virtual void apply(const ModelOverrides& overrides) = 0;
  /// Throws a usage error that names the field, behind `where`, when the shape does not fit together.
  virtual void check(const std::string& where) const = 0;

  /// What each layer is; empty for a family that does not say so, as by default.
  virtual std::vector<BlockConfig> block_configs() const { return {}; }
  /// Whether its layers have block configs of their own.
  virtual bool is_heterogeneous() const { return false; }
  /// Lets each layer be what its block config says. Call check() then. Throws a usage error for a family whose layers
  /// are all alike, as by default.
  virtual void set_block_configs(std::vector<BlockConfig> blocks);
  /// What its sub-blocks share, for account_for; nothing for a family that does not say so, as by default.
  virtual std::optional<DecoderForm> decoder_form() const { return std::nullopt; }

  /// Parameters and FLOPs a token for training at this sequence length (torchtitan's name).
  virtual ModelCounts get_nparams_and_flops(int64_t seq_len) const = 0;
  /// Builds one stage on meta.
  virtual std::shared_ptr<nn::Model> build(const BuildOptions& options) const = 0;
  /// From the tensors of a checkpoint, under Hugging Face's names, to the parameters of the whole model, in the order
  /// of the model; the inverse is the export. Families without experts have one layout.
  virtual state::StateMap state_map(ExpertLayout layout) const = 0;
  /// The content of config.json; `dtype` is torch's name of the weights' type.
  virtual Node to_hf_config(const std::string& dtype) const = 0;
};

/// A model family: what the list of models holds one of.
struct ModelFamily {
  std::string name;                         ///< What model.name says, as "qwen3".
  std::vector<std::string> hf_model_types;  ///< The model_type values of config.json that this family reads.
  std::map<std::string, std::function<std::unique_ptr<ModelArgs>()>> flavors;  ///< Known sizes, by name.
  std::function<std::unique_ptr<ModelArgs>(const Node& config)> from_hf_config;
  std::shared_ptr<const ModelDescriptor> descriptor = {};  ///< How to take its models apart; null: nobody has said.

  /// The shape of a flavor. Throws a usage error that lists the flavors.
  std::unique_ptr<ModelArgs> from_flavor(const std::string& flavor) const;
  /// The shape that `folder`/config.json describes. `folder` may be the file itself.
  std::unique_ptr<ModelArgs> from_hf_folder(const std::filesystem::path& folder) const;
};

/// The families that a program knows; a plain value, made where the program starts.
class ModelFamilies {
 public:
  /// Throws a usage error if a family of that name, or one that reads the same model_type, is already there.
  void add(ModelFamily family);
  /// Throws a usage error that lists the known names.
  const ModelFamily& at(const std::string& name) const;
  /// The family that reads the model_type of `folder`/config.json. Throws a usage error that lists the known ones.
  const ModelFamily& of_hf_folder(const std::filesystem::path& folder) const;
  /// The shape that `folder`/config.json describes, by its model_type. `folder` may be the file itself.
  std::unique_ptr<ModelArgs> from_hf_folder(const std::filesystem::path& folder) const;
  /// The shape of a flavor. Throws a usage error that lists the flavors of the family.
  std::unique_ptr<ModelArgs> from_flavor(const std::string& family, const std::string& flavor) const;
  /// How models of the family `name` are built. Throws a usage error that lists the known names, or says that the
  /// family has no descriptor.
  const ModelDescriptor& descriptor(const std::string& name) const;
  /// The same for the family that reads `folder`/config.json.
  const ModelDescriptor& descriptor_of_hf_folder(const std::filesystem::path& folder) const;

 private:
  std::vector<ModelFamily> families_;
};

}  // namespace lehr::descriptor

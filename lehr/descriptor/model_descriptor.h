// The interface of a model family for tools that modify models: module paths, weight groups, and layers with no-op
// sub-blocks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "lehr/descriptor/block_config.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::descriptor {

/// Tests by name whether a checkpoint's tensor belongs to a group: `prefix`, then one of `endings`, in which # matches
/// a number (of an expert).
struct LayerNamePredicate {
  std::string prefix;
  std::vector<std::string> endings;

  bool operator()(std::string_view name) const;
};

/// A group of weights and its predicate.
struct WeightGroupPredicate {
  std::string group;
  LayerNamePredicate belongs;
};

/// Names of a checkpoint's tensors by group: "embeddings", "lm_head" (with the final norm), "block_0_attention",
/// "block_0_ffn", ... Groups without weights, such as those of a no-op, are absent.
using WeightGroups = std::map<std::string, std::vector<std::string>>;

/// Names of a decoder layer's children by sub-block, relative to the layer. A layer may lack some of them.
struct SubblockModules {
  std::vector<std::string> attention;  ///< The attention and its norms.
  std::vector<std::string> ffn;        ///< The feed-forward block or MoE layer, and its norms.
  std::vector<std::string> shared;     ///< Modules that both use, such as one norm before both.
};

/// The structure of a family's models (puzzletron's abstraction, with its names). Names are those of Hugging Face's
/// modules and tensors, which are also the paths of Lehr's modules. puzzletron patches classes at run time; here a
/// layer takes parameters, and the functions that modify an existing layer have the same effect.
class ModelDescriptor {
 public:
  virtual ~ModelDescriptor() = default;

  /// The class of a decoder layer, which holds attention and feed-forward block.
  virtual const std::type_info& decoder_layer_cls() const = 0;
  bool is_decoder_layer(const torch::nn::Module& module) const { return typeid(module) == decoder_layer_cls(); }

  /// The keys of config.json that a block config overrides for its layer; keys that a no-op does not use are not set.
  virtual ModelOverrides block_config_to_layer_overrides(const BlockConfig& block) const = 0;

  /// Removes the attention of a constructed layer with its norms and weights, so that the residual stream passes
  /// through. Call it before the model is laid out on a mesh and before an optimizer knows its parameters. Throws a
  /// usage error if this is not supported, or if the module is not a decoder layer of the family.
  virtual void attn_no_op_post_init(torch::nn::Module& decoder_layer) const;
  /// The same for the feed-forward block or MoE layer.
  virtual void mlp_no_op_post_init(torch::nn::Module& decoder_layer) const;
  virtual bool attn_no_op_supported() const { return false; }
  virtual bool mlp_no_op_supported() const { return false; }

  /// Returns a placeholder for `original_layer`, the layer with this index, on ranks that do not hold it: a layer of
  /// the same class without weights, which returns its input.
  virtual std::shared_ptr<torch::nn::Module> create_dummy_block(
      const torch::nn::Module& original_layer, int64_t block_index) const = 0;

  /// Restores position tables that checkpoints do not store, after a model was built on meta and filled. Does nothing
  /// by default: nn::RotaryEmbeddingProvider has no tables and computes angles in float64 on demand.
  virtual void init_rotary_embedding(nn::Model& model) const;

  /// Paths of modules.
  virtual std::string input_embedding_name() const = 0;
  virtual std::string output_embedding_name() const = 0;
  virtual std::string final_norm_name() const = 0;
  virtual std::string layer_block_name(int64_t index) const = 0;

  /// The children of a decoder layer by sub-block; empty by default, for a family whose sub-blocks cannot be scored.
  virtual SubblockModules subblock_modules() const { return {}; }

  /// The members of each group, for a model with this number of layers.
  virtual std::vector<WeightGroupPredicate> layer_name_predicates(int64_t num_layers) const = 0;
  /// Groups the names, keeping their order. By default the first matching predicate decides. Throws a usage error that
  /// names the first weight that belongs to no group or occurs twice.
  virtual WeightGroups get_weight_groups(const std::vector<std::string>& layer_names, int64_t num_hidden_layers) const;

  /// The part of config.json that describes the language model: all of it, except for models with other parts.
  virtual const Node& get_language_model_config(const Node& config) const { return config; }
  /// True if loading runs code of a checkpoint. Lehr never does; true would mean that a checkpoint expects it.
  virtual bool requires_trust_remote_code() const { return false; }
  /// True if the models support bfloat16 compute with float32 weights (training.mixed_precision_param).
  virtual bool uses_autocast() const { return true; }
};

}  // namespace lehr::descriptor

// What a tool must know of a family to take its models apart: modules by their paths, weights by their groups, and
// layers with and without their sub-blocks.
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

/// Whether a tensor of a checkpoint belongs to a group, by its name: `prefix`, then one of `endings`, in which # stands
/// for a number (of an expert).
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
/// "block_0_ffn", ... A group without weights, as that of a no-op, is not there.
using WeightGroups = std::map<std::string, std::vector<std::string>>;

/// How the models of a family are built (puzzletron's abstraction, with its names). Names are those of Hugging Face's
/// modules and tensors, which are the paths of Lehr's modules too. Where upstream changes classes at run time, a layer
/// takes parameters here; what these functions do to a layer that was built already is the same.
class ModelDescriptor {
 public:
  virtual ~ModelDescriptor() = default;

  /// The class of a decoder layer: what holds attention and feed-forward.
  virtual const std::type_info& decoder_layer_cls() const = 0;
  bool is_decoder_layer(const torch::nn::Module& module) const { return typeid(module) == decoder_layer_cls(); }

  /// The keys of config.json that a block config changes for its layer; what a no-op has no use for is not given.
  virtual ModelOverrides block_config_to_layer_overrides(const BlockConfig& block) const = 0;

  /// Takes the attention of a finished layer away, with its norm and its weights, so that hidden states pass by. Before
  /// the model is laid out on a mesh and before an optimizer knows its parameters. Throws a usage error if that is not
  /// supported, or the module is no decoder layer of the family.
  virtual void attn_no_op_post_init(torch::nn::Module& decoder_layer) const;
  /// The same for the feed-forward block, a mixture of experts too.
  virtual void mlp_no_op_post_init(torch::nn::Module& decoder_layer) const;
  virtual bool attn_no_op_supported() const { return false; }
  virtual bool mlp_no_op_supported() const { return false; }

  /// A layer that takes the place of `original_layer`, the one of that number, where another rank has it: of the same
  /// class, without weights, it gives the hidden states that it gets.
  virtual std::shared_ptr<torch::nn::Module> create_dummy_block(
      const torch::nn::Module& original_layer, int64_t block_index) const = 0;

  /// Restores what positions need and no checkpoint holds, after a model was built on meta and filled. Nothing by
  /// default: nn::RotaryEmbeddingProvider keeps no tables, and angles are computed in float64 when they are asked for.
  virtual void init_rotary_embedding(nn::Model& model) const;

  /// Paths of modules.
  virtual std::string input_embedding_name() const = 0;
  virtual std::string output_embedding_name() const = 0;
  virtual std::string final_norm_name() const = 0;
  virtual std::string layer_block_name(int64_t index) const = 0;

  /// What belongs to each group, for a model of that many layers.
  virtual std::vector<WeightGroupPredicate> layer_name_predicates(int64_t num_layers) const = 0;
  /// The names by group, in the order given. By default the first predicate that holds decides. Throws a usage error
  /// that names the first weight that belongs to no group, or is given twice.
  virtual WeightGroups get_weight_groups(const std::vector<std::string>& layer_names, int64_t num_hidden_layers) const;

  /// The part of config.json that describes the language model: all of it, but for models that have others besides.
  virtual const Node& get_language_model_config(const Node& config) const { return config; }
  /// Whether loading runs code of a checkpoint. Lehr never does; true would say that a checkpoint expects it.
  virtual bool requires_trust_remote_code() const { return false; }
  /// Whether the models may compute in bfloat16 over float32 weights (training.mixed_precision_param).
  virtual bool uses_autocast() const { return true; }
};

}  // namespace lehr::descriptor

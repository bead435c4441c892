// The descriptor that decoder families share: Hugging Face's naming pattern, and sub-blocks that are identified by
// comparison with a layer that lacks them.
#pragma once

#include "lehr/descriptor/model_descriptor.h"
#include "lehr/model/decoder_blocks.h"

namespace lehr::model {

/// The part of a decoder's descriptor that does not know the class of its layers: paths, and which modules and stored
/// tensors belong to a sub-block. Those of the attention are the ones that a layer with attention_no_op lacks, and
/// likewise for the feed-forward block; a norm that both use is stored with the attention. So norms, their number and
/// all names are those that the layer declares. The final norm and a classifier's score belong to "lm_head".
class DecoderNames : public descriptor::ModelDescriptor {
 public:
  /// `shape` is any valid model of the family.
  explicit DecoderNames(DecoderConfig shape) : shape_(std::move(shape)) {}

  descriptor::ModelOverrides block_config_to_layer_overrides(const descriptor::BlockConfig& block) const override {
    return block_overrides(shape_, block);
  }
  std::string input_embedding_name() const override { return "model.embed_tokens"; }
  std::string output_embedding_name() const override { return "lm_head"; }
  std::string final_norm_name() const override { return "model.norm"; }
  std::string layer_block_name(int64_t index) const override { return "model.layers." + std::to_string(index); }
  std::vector<descriptor::WeightGroupPredicate> layer_name_predicates(int64_t num_layers) const override;
  descriptor::SubblockModules subblock_modules() const override;
  bool attn_no_op_supported() const override { return true; }
  bool mlp_no_op_supported() const override { return true; }

 protected:
  const DecoderConfig& shape() const { return shape_; }
  /// Names of the children of the first layer of a model of this shape, with this block config.
  virtual std::vector<std::string> children(const DecoderConfig& shape, const descriptor::BlockConfig& block) const = 0;
  /// Names of the stored tensors of a model of this shape.
  virtual std::vector<std::string> stored_names(const DecoderConfig& shape, descriptor::ExpertLayout layout) const = 0;

  /// Removes the modules of a sub-block that the layer still has; those of both sub-blocks go with the second one.
  void drop_attention(nn::Module& layer) const;
  void drop_ffn(nn::Module& layer) const;

 private:
  DecoderConfig shape_;
};

}  // namespace lehr::model

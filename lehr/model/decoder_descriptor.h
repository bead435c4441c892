// The descriptor that decoder families share: names by Hugging Face's pattern, no-ops of a layer's two halves.
#pragma once

#include "lehr/base/error.h"
#include "lehr/descriptor/model_descriptor.h"
#include "lehr/model/decoder_blocks.h"

namespace lehr::model {

/// Names of a layer's tensors on disk, behind "model.layers.7.", but for the norms; # stands for an expert's number.
struct LayerWeightNames {
  std::vector<std::string> attention;
  std::vector<std::string> ffn;
};

/// Names and groups of decoders: model.embed_tokens, model.layers.N, model.norm, lm_head. The norm before a sub-block
/// is in its group; the final norm is in "lm_head", and so is a classifier's score.weight.
class DecoderNames : public descriptor::ModelDescriptor {
 public:
  explicit DecoderNames(LayerWeightNames names);

  descriptor::ModelOverrides block_config_to_layer_overrides(const descriptor::BlockConfig& block) const override {
    return block_overrides(block);
  }
  std::string input_embedding_name() const override { return "model.embed_tokens"; }
  std::string output_embedding_name() const override { return "lm_head"; }
  std::string final_norm_name() const override { return "model.norm"; }
  std::string layer_block_name(int64_t index) const override { return "model.layers." + std::to_string(index); }
  std::vector<descriptor::WeightGroupPredicate> layer_name_predicates(int64_t num_layers) const override;
  bool attn_no_op_supported() const override { return true; }
  bool mlp_no_op_supported() const override { return true; }

 private:
  LayerWeightNames names_;
};

/// The descriptor of a family with layers of class `Layer`, made from `LayerParameters`. A layer holds its attention as
/// self_attn, its feed-forward block as mlp or experts, both under the name "mlp", and skips what is empty.
template <class Layer, class LayerParameters>
class DecoderDescriptor : public DecoderNames {
 public:
  using DecoderNames::DecoderNames;

  const std::type_info& decoder_layer_cls() const override { return typeid(Layer); }

  void attn_no_op_post_init(torch::nn::Module& decoder_layer) const override {
    Layer& layer = as_layer(decoder_layer, "attn_no_op_post_init");
    if (layer.self_attn) {
      layer.unregister_module("self_attn");
      layer.unregister_module("input_layernorm");
      layer.self_attn = nullptr;
      layer.input_layernorm = nullptr;
    }
  }

  void mlp_no_op_post_init(torch::nn::Module& decoder_layer) const override {
    Layer& layer = as_layer(decoder_layer, "mlp_no_op_post_init");
    if (layer.post_attention_layernorm) {
      layer.unregister_module("mlp");
      layer.unregister_module("post_attention_layernorm");
      layer.mlp = nullptr;
      layer.post_attention_layernorm = nullptr;
      if constexpr (requires { layer.experts; }) {
        layer.experts = nullptr;
      }
    }
  }

  std::shared_ptr<torch::nn::Module> create_dummy_block(
      const torch::nn::Module& original_layer, int64_t /*block_index*/) const override {
    as_layer(original_layer, "create_dummy_block");
    LayerParameters nothing{};
    nothing.attention_no_op = true;
    nothing.ffn_no_op = true;
    return std::make_shared<Layer>(nothing);
  }

 private:
  template <class Module>
  static auto& as_layer(Module& module, const char* what) {
    using Wanted = std::conditional_t<std::is_const_v<Module>, const Layer, Layer>;
    auto* layer = dynamic_cast<Wanted*>(&module);
    require(layer != nullptr, "{}: expected a decoder layer of this family, found {}", what, module.name());
    return *layer;
  }
};

}  // namespace lehr::model

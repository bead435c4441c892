#include "lehr/model/decoder_descriptor.h"

namespace lehr::model {

DecoderNames::DecoderNames(LayerWeightNames names) : names_(std::move(names)) {
  names_.attention.emplace_back("input_layernorm.weight");
  names_.ffn.emplace_back("post_attention_layernorm.weight");
}

std::vector<descriptor::WeightGroupPredicate> DecoderNames::layer_name_predicates(int64_t num_layers) const {
  std::vector<descriptor::WeightGroupPredicate> predicates{
      {.group = "embeddings", .belongs = {.prefix = "model.embed_tokens.", .endings = {"weight"}}},
      {.group = "lm_head",
       .belongs = {.prefix = "", .endings = {"model.norm.weight", "lm_head.weight", "score.weight"}}}};
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string prefix = layer_block_name(layer) + ".";
    const std::string group = "block_" + std::to_string(layer);
    predicates.push_back({.group = group + "_attention", .belongs = {.prefix = prefix, .endings = names_.attention}});
    predicates.push_back({.group = group + "_ffn", .belongs = {.prefix = prefix, .endings = names_.ffn}});
  }
  return predicates;
}

}  // namespace lehr::model

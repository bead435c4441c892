#include "lehr/model/decoder_descriptor.h"

#include <algorithm>
#include <set>

#include "lehr/base/value_of.h"

namespace lehr::model {

namespace {
using descriptor::BlockConfig;
using descriptor::ExpertLayout;
using descriptor::NoOpSubblock;
using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

BlockConfig without_attention(BlockConfig block) {
  block.attention = NoOpSubblock{};
  return block;
}

BlockConfig without_ffn(BlockConfig block) {
  block.ffn = NoOpSubblock{};
  return block;
}

// A layer, and a shape whose first layer may be such a one.
struct KindOfLayer {
  DecoderConfig shape;
  BlockConfig block;
};

// The kinds of layers that a family has, with the sizes of `shape` and one expert.
std::vector<KindOfLayer> kinds_of_layers(DecoderConfig shape) {
  if (shape.moe) {
    shape.moe->router.n_group = shape.moe->router.topk_group = 1;
  }
  const descriptor::AttentionSubblock attention{.num_key_value_heads = 1};
  std::vector<BlockConfig> blocks{{.attention = attention, .ffn = descriptor::FFNSubblock{shape.intermediate_size}}};
  if (shape.moe) {
    blocks.push_back(
        {.attention = attention,
         .ffn = descriptor::MoESubblock{
             .num_local_experts = 1,
             .num_experts_per_tok = 1,
             .expert_intermediate_dim = shape.moe->moe_intermediate_size,
             .shared_expert_intermediate_dim = shape.moe->shared_expert_width()}});
  }
  blocks.push_back({.attention = descriptor::LinearSubblock{}, .ffn = descriptor::LinearSubblock{}});
  std::vector<DecoderConfig> shapes{shape};
  if (shape.linear_attention) {
    shapes.push_back(shape);
    value_of(shapes[0].linear_attention, "linear_attention").layers = {false};
    value_of(shapes[1].linear_attention, "linear_attention").layers = {true};
  }
  if (shape.mamba2) {
    shapes.clear();
    for (const Mixer mixer : {Mixer::mamba, Mixer::attention, Mixer::feed_forward, Mixer::experts}) {
      shapes.push_back(shape);
      value_of(shapes.back().mamba2, "mamba2").pattern = static_cast<char>(mixer);
    }
  }
  if (shape.latent_attention) {  // with biases, and one projection of queries or two
    value_of(shapes[0].latent_attention, "latent_attention").attention_bias = true;
    shapes.push_back(shapes[0]);
    value_of(shapes[0].latent_attention, "latent_attention").q_lora_rank = 1;
    value_of(shapes[1].latent_attention, "latent_attention").q_lora_rank.reset();
  }
  std::vector<KindOfLayer> kinds;
  for (const BlockConfig& block : blocks) {
    const bool has_experts = std::holds_alternative<descriptor::MoESubblock>(block.ffn);
    for (const DecoderConfig& one : shapes) {
      if (!one.mamba2 || has_experts == (one.mamba2->mixer(0) == Mixer::experts)) {
        kinds.push_back({one, block});
      }
    }
  }
  return kinds;
}

// A language model with one layer, which has all weights that a layer of this kind can have.
DecoderConfig one_layer(DecoderConfig shape, const BlockConfig& block) {
  shape.head = descriptor::Head::causal_lm;
  shape.num_hidden_layers = 1;
  shape.block_configs = {block};
  shape.qkv_bias = shape.output_bias = true;
  if (shape.moe) {
    shape.moe->expert_bias = true;
  }
  return shape;
}

// "mlp.experts.0.up_proj.weight" as "mlp.experts.#.up_proj.weight"
std::string with_any_number(const std::string& name) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    pattern += (begin == 0 ? "" : ".") + (is_number ? "#" : part);
    begin = end + 1;
  }
  return pattern;
}

void drop(nn::Module& layer, const Names& own, const Names& others, const Names& shared) {
  const auto has = [&](const std::string& name) { return layer.named_children().contains(name); };
  Names gone = own;
  if (std::none_of(others.begin(), others.end(), has)) {
    gone.insert(gone.end(), shared.begin(), shared.end());
  }
  for (const std::string& name : gone) {
    if (has(name)) {
      layer.drop_module(name);
    }
  }
}
}  // namespace

descriptor::SubblockModules DecoderNames::subblock_modules() const {
  descriptor::SubblockModules modules;
  for (const auto& [shape, block] : kinds_of_layers(shape_)) {
    const Names left_of_attention = children(shape, without_attention(block));
    const Names left_of_ffn = children(shape, without_ffn(block));
    for (const std::string& name : children(shape, block)) {
      const bool of_attention = !contains(left_of_attention, name), of_ffn = !contains(left_of_ffn, name);
      Names& group = of_attention == of_ffn ? modules.shared : of_attention ? modules.attention : modules.ffn;
      if (!contains(group, name)) {
        group.push_back(name);
      }
    }
  }
  return modules;
}

void DecoderNames::drop_attention(nn::Module& layer) const {
  const auto modules = subblock_modules();
  drop(layer, modules.attention, modules.ffn, modules.shared);
}

void DecoderNames::drop_ffn(nn::Module& layer) const {
  const auto modules = subblock_modules();
  drop(layer, modules.ffn, modules.attention, modules.shared);
}

std::vector<descriptor::WeightGroupPredicate> DecoderNames::layer_name_predicates(int64_t num_layers) const {
  const std::string first = layer_block_name(0) + ".";
  std::set<std::string> attention, ffn;
  for (const auto& [shape, block] : kinds_of_layers(shape_)) {
    for (const ExpertLayout layout : {ExpertLayout::per_expert, ExpertLayout::fused}) {
      const Names left_of_attention = stored_names(one_layer(shape, without_attention(block)), layout);
      const Names left_of_ffn = stored_names(one_layer(shape, without_ffn(block)), layout);
      for (const std::string& name : stored_names(one_layer(shape, block), layout)) {
        if (name.starts_with(first)) {
          const bool of_ffn = contains(left_of_attention, name) && !contains(left_of_ffn, name);
          (of_ffn ? ffn : attention).insert(with_any_number(name.substr(first.size())));
        }
      }
    }
  }
  std::vector<descriptor::WeightGroupPredicate> predicates{
      {.group = "embeddings", .belongs = {.prefix = "model.embed_tokens.", .endings = {"weight"}}},
      {.group = "lm_head",
       .belongs = {.prefix = "", .endings = {"model.norm.weight", "lm_head.weight", "score.weight", "score.bias"}}}};
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string prefix = layer_block_name(layer) + ".";
    const std::string group = "block_" + std::to_string(layer);
    predicates.push_back(
        {.group = group + "_attention",
         .belongs = {.prefix = prefix, .endings = {attention.begin(), attention.end()}}});
    predicates.push_back({.group = group + "_ffn", .belongs = {.prefix = prefix, .endings = {ffn.begin(), ffn.end()}}});
  }
  return predicates;
}

}  // namespace lehr::model

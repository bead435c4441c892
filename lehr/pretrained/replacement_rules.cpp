#include "lehr/pretrained/replacement_rules.h"

#include <array>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/block_config_dialects.h"

namespace lehr::pretrained {

using descriptor::BlockConfig;

namespace {
// Settings that change a sub-block's computation with the same weights, without the sizes in a block config.
constexpr std::array kSharedKeys = {
    "hidden_size",
    "num_attention_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "query_pre_attn_scalar",
    "norm_topk_prob",
    "expert_bias",
    "partial_rotary_factor",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_interleave",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim"};
// Lists with an entry per layer that do so for its attention.
constexpr std::array kKeysOfLayers = {"layer_types", "no_rope_layers"};

std::string text_of(const Node& config, const char* key) {
  const Node* value = config.find(key);
  return value != nullptr ? to_json(*value) : "null";
}

struct Difference {
  std::string key, said, there;
};

Difference first_difference(const Node& said, const Node& there, const std::string& key) {
  if (said.is_table() && there.is_table()) {
    for (const auto& [name, value] : said.entries()) {
      const Node& other = there.at(name);
      if (to_json(value) != to_json(other)) {
        return first_difference(value, other, key + "." + name);
      }
    }
  }
  return {.key = key, .said = to_json(said), .there = to_json(there)};
}
}  // namespace

void require_same_computation(
    const Replacement& replacement, const descriptor::ModelArgs& other, const descriptor::ModelArgs& own) {
  const std::string folder = value_of(replacement.origin, "origin").model.string();
  require(
      other.model_type() == own.model_type(),
      "{}: expected a model of type {}, found {} in {}",
      replacement.where,
      own.model_type(),
      other.model_type(),
      folder);
  const Node there = other.to_hf_config("float32");
  const Node here = own.to_hf_config("float32");
  for (const char* key : kSharedKeys) {
    require(
        text_of(there, key) == text_of(here, key),
        "{}: {} has {} = {}, but the target model has {}; a sub-block would compute something else there",
        replacement.where,
        folder,
        key,
        text_of(there, key),
        text_of(here, key));
  }
}

void require_same_kind_of_layer(
    const Replacement& replacement, const descriptor::ModelArgs& other, const descriptor::ModelArgs& own) {
  if (replacement.subblock != Subblock::attention) {
    return;
  }
  const auto origin = value_of(replacement.origin, "origin");
  const Node there = other.to_hf_config("float32");
  const Node here = own.to_hf_config("float32");
  for (const char* key : kKeysOfLayers) {
    const Node *theirs = there.find(key), *ours = here.find(key);
    if (theirs == nullptr || ours == nullptr) {
      continue;
    }
    const std::string found = to_json(theirs->at(static_cast<size_t>(origin.layer)));
    const std::string wanted = to_json(ours->at(static_cast<size_t>(replacement.layer)));
    require(
        found == wanted,
        "{}: layer {} of {} has {} {}, but layer {} of the target model has {}; its attention would compute something "
        "else there",
        replacement.where,
        origin.layer,
        origin.model.string(),
        key,
        found,
        replacement.layer,
        wanted);
  }
}

void require_layer(const Replacement& replacement, int64_t layer, size_t count, const std::string& folder) {
  require(
      layer < static_cast<int64_t>(count),
      "{}: {} has layers 0 to {}, and no layer {}",
      replacement.where,
      folder,
      static_cast<int64_t>(count) - 1,
      layer);
}

void require_stated_block(
    const Replacement& replacement, const BlockConfig& there, const descriptor::DecoderForm& form) {
  if (!replacement.block_config) {
    return;
  }
  const Node& config = *replacement.block_config;
  const descriptor::LayersByDefault sizes{
      .blocks = {}, .hidden_size = form.hidden_size, .num_attention_heads = form.num_attention_heads};
  BlockConfig said = there;
  if (replacement.subblock == Subblock::attention) {
    said.attention = descriptor::read_attention(config, sizes);
  } else {
    said.ffn = descriptor::read_ffn(config, sizes);
    auto* moe = std::get_if<descriptor::MoESubblock>(&said.ffn);
    const auto* own = std::get_if<descriptor::MoESubblock>(&there.ffn);
    if (moe != nullptr && own != nullptr && own->shared_expert_intermediate_dim == 0 &&
        moe->shared_expert_intermediate_dim == descriptor::kPuzzletronSharedExpert) {
      moe->shared_expert_intermediate_dim = 0;  // as in a config.json
    }
  }
  if (said == there) {
    return;
  }
  const auto written = [&](const BlockConfig& block) {
    return descriptor::write_block_configs({block}).at(0).at(name_of(replacement.subblock));
  };
  const SubblockOrigin& origin = value_of(replacement.origin, "origin");
  const Difference found = first_difference(written(said), written(there), config.key());
  fail(
      "{}: {}: expected {}, as in layer {} of {}, found {}",
      config.origin(),
      found.key,
      found.there,
      origin.layer,
      origin.model.string(),
      found.said);
}

}  // namespace lehr::pretrained

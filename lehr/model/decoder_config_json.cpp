// Reading, checking and writing of a DecoderConfig. What differs from layer to layer is in decoder_blocks.cpp.
#include <algorithm>
#include <array>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/config/node_list.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_blocks.h"
#include "lehr/model/decoder_config.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/decoder_sizes.h"
#include "lehr/model/quantization_config.h"
#include "lehr/model/rope_config.h"
#include "lehr/model/supported_values.h"
#include "lehr/nn/embedding.h"

namespace lehr::model {

namespace {
using OwnKeys = std::span<const char* const>;

bool contains(OwnKeys keys, std::string_view key) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* own) { return key == own; });
}

// Rejects features that the shared decoder does not compute.
void refuse_unsupported(const Node& config, OwnKeys own_keys) {
  auto refuse = [&](const char* key, const std::string& found, const char* expected) {
    fail("{}: {}: expected {}, found {}; this is not supported", config.origin(), key, expected, found);
  };
  const Node* act = contains(own_keys, "hidden_act") ? nullptr : config.find("hidden_act");
  if (act != nullptr && act->as_string() != "silu") {
    refuse("hidden_act", act->as_string(), "silu");
  }
  for (const char* key : {"mlp_bias", "use_sliding_window"}) {
    if (!contains(own_keys, key)) {
      require_supported(config, key, false);
    }
  }
  require_supported(config, "is_causal", true);  // else transformers masks no keys
  const Node* types = contains(own_keys, "layer_types") ? nullptr : config.find("layer_types");
  for (size_t i = 0; types != nullptr && !types->is_null() && i < types->size(); ++i) {
    if (types->at(i).as_string() != "full_attention") {
      refuse("layer_types", types->at(i).as_string(), "full_attention in every layer");
    }
  }
  if (double_or(config, "attention_dropout", 0) != 0) {
    refuse("attention_dropout", "another value", "0");
  }
  if (!contains(own_keys, "partial_rotary_factor") && double_or(config, "partial_rotary_factor", 1) != 1) {
    refuse("partial_rotary_factor", "another value", "1");
  }
}

// Absent, it is that of heads which fill the hidden size.
int64_t read_head_dim(const Node& config, const DecoderConfig& shape) {
  if (const auto head_dim = optional_int(config, "head_dim")) {
    return *head_dim;
  }
  require_size(config.origin() + ": ", "num_attention_heads", shape.num_attention_heads);
  require(
      shape.hidden_size % shape.num_attention_heads == 0,
      "{}: num_attention_heads: expected a divisor of hidden_size ({}), because there is no head_dim, found {}",
      config.origin(),
      shape.hidden_size,
      shape.num_attention_heads);
  return shape.hidden_size / shape.num_attention_heads;
}

// transformers 5 stores theta and scaling in one table, transformers 4 separately.
void read_rope(const Node& config, bool partial, DecoderConfig& shape) {
  shape.rope_theta = read_rope_theta(config, shape.rope_theta);
  if (const Node* rope = rope_table_of(config)) {
    shape.rope_scaling = read_rope_scaling(
        *rope,
        {.max_position_embeddings = shape.max_position_embeddings,
         .original_max_position_embeddings = optional_int(config, "original_max_position_embeddings"),
         .partial = partial});
  }
}

int64_t count_labels(const Node& config) {
  if (const Node* labels = config.find("id2label"); labels != nullptr && !labels->is_null()) {
    return static_cast<int64_t>(labels->entries().size());
  }
  return int_or(config, "num_labels", 2);
}

descriptor::Head read_head(const Node& config) {
  const Node* architectures = config.find("architectures");
  if (architectures == nullptr || architectures->is_null() || architectures->items().empty()) {
    return descriptor::Head::causal_lm;
  }
  const std::string name = architectures->at(0).as_string();
  if (name.ends_with("ForCausalLM")) {
    return descriptor::Head::causal_lm;
  }
  if (name.ends_with("ForSequenceClassification")) {
    return descriptor::Head::classification;
  }
  if (name.ends_with("ForTokenClassification")) {
    return descriptor::Head::token_classification;
  }
  if (name.ends_with("Model")) {
    return descriptor::Head::embedding;
  }
  fail(
      "{}: architectures: expected ...ForCausalLM, ...ForSequenceClassification, ...ForTokenClassification or ...Model, "
      "found {}",
      config.origin(),
      name);
}

// The end of an architecture's name, such as that of Qwen3ForCausalLM.
const char* suffix_of(descriptor::Head head) {
  switch (head) {
    case descriptor::Head::causal_lm:
      return "ForCausalLM";
    case descriptor::Head::classification:
      return "ForSequenceClassification";
    case descriptor::Head::token_classification:
      return "ForTokenClassification";
    case descriptor::Head::embedding:
      return "Model";
  }
  return "";
}

// transformers 5 does not write the key for models with a list of their layers' types (Nemotron-H).
int64_t read_num_hidden_layers(const Node& config) {
  const Node* types = config.find("layers_block_type");
  const bool counts = config.find("num_hidden_layers") == nullptr && types != nullptr && types->is_list();
  return counts ? static_cast<int64_t>(types->items().size()) : config.at("num_hidden_layers").as_int();
}
}  // namespace

DecoderConfig DecoderConfig::from_hf(const Node& config, std::span<const char* const> own_keys) {
  refuse_unsupported(config, own_keys);
  check_quantization(config);
  DecoderConfig c;
  c.vocab_size = config.at("vocab_size").as_int();
  c.hidden_size = config.at("hidden_size").as_int();
  const bool blocks_say = config.find("block_configs") != nullptr && !config.at("block_configs").is_null();
  const bool may_lack_width = blocks_say || contains(own_keys, "intermediate_size");
  c.intermediate_size =
      may_lack_width ? int_or(config, "intermediate_size", 0) : config.at("intermediate_size").as_int();
  c.num_hidden_layers = read_num_hidden_layers(config);
  c.num_attention_heads = config.at("num_attention_heads").as_int();
  c.num_key_value_heads = int_or(config, "num_key_value_heads", blocks_say ? 0 : c.num_attention_heads);
  c.head_dim = contains(own_keys, "head_dim") ? 0 : read_head_dim(config, c);
  c.max_position_embeddings = config.at("max_position_embeddings").as_int();
  c.rms_norm_eps = double_or(config, "rms_norm_eps", 1e-6);
  c.initializer_range = double_or(config, "initializer_range", 0.02);
  c.tie_word_embeddings = bool_or(config, "tie_word_embeddings", false);
  if (!contains(own_keys, "rope_parameters")) {
    read_rope(config, contains(own_keys, "partial_rotary_factor"), c);
  }
  if (!contains(own_keys, "attention_bias")) {
    c.qkv_bias = c.output_bias = bool_or(config, "attention_bias", false);
  }
  c.bos_token_id = optional_int(config, "bos_token_id");
  c.pad_token_id = optional_int(config, "pad_token_id");
  c.eos_token_id = descriptor::eos_token_ids(config);
  if (config.find("num_experts_per_tok") != nullptr && !contains(own_keys, "num_experts_per_tok")) {
    c.moe = MoEConfig::from_hf(config);
  }
  c.head = read_head(config);
  c.num_labels = count_labels(config);
  const bool of_tokens = c.head == descriptor::Head::token_classification;
  c.classifier_dropout = double_or(config, "classifier_dropout", of_tokens ? 0.1 : 0);  // transformers' defaults
  c.token_classification_bias = bool_or(config, "token_classification_bias", true);
  return c;
}

void DecoderConfig::apply(const descriptor::ModelOverrides& o) {
  if (!block_configs.empty()) {
    refuse_overrides_of_blocks(o);
  }
  vocab_size = o.vocab_size.value_or(vocab_size);
  hidden_size = o.hidden_size.value_or(hidden_size);
  intermediate_size = o.intermediate_size.value_or(intermediate_size);
  num_hidden_layers = o.num_hidden_layers.value_or(num_hidden_layers);
  num_attention_heads = o.num_attention_heads.value_or(num_attention_heads);
  num_key_value_heads = o.num_key_value_heads.value_or(num_key_value_heads);
  head_dim = o.head_dim.value_or(head_dim);
  max_position_embeddings = o.max_position_embeddings.value_or(max_position_embeddings);
  for (nn::RopeScaling* scaling : {&rope_scaling, sliding_rope ? &sliding_rope->scaling : nullptr}) {
    if (auto* ntk = scaling != nullptr ? std::get_if<nn::DynamicNtkRopeScaling>(scaling) : nullptr) {
      ntk->original_max_position_embeddings = max_position_embeddings;  // config.json has no other length
    }
  }
  rope_theta = o.rope_theta.value_or(rope_theta);
  rms_norm_eps = o.rms_norm_eps.value_or(rms_norm_eps);
  initializer_range = o.initializer_range.value_or(initializer_range);
  tie_word_embeddings = o.tie_word_embeddings.value_or(tie_word_embeddings);
  if (moe) {
    if (moe->uses_intermediate_size && o.intermediate_size) {
      moe->moe_intermediate_size = *o.intermediate_size;
    }
    moe->apply(o);
  } else {
    refuse_experts(o);
  }
  split_vocab_size = o.split_vocab_size;
  split_vocab_order = o.split_vocab_order;
}

void DecoderConfig::check(const std::string& where) const {
  if (latent_attention) {
    latent_attention->check(where);
  }
  if (linear_attention) {
    linear_attention->check(where);
  }
  if (mamba2) {
    mamba2->check(where);
  }
  check_sizes(*this, where);
  auto positive = [&](const char* name, double value) {
    require(value > 0, "{}{}: expected a positive number, found {}", where, name, value);
  };
  positive("rms_norm_eps", rms_norm_eps);
  positive("rope_theta", rope_theta);
  require(
      initializer_range >= 0,
      "{}initializer_range: expected 0 or a positive number, found {}",
      where,
      initializer_range);
  require(
      classifier_dropout >= 0 && classifier_dropout < 1,
      "{}classifier_dropout: expected a number from 0 to below 1, found {}",
      where,
      classifier_dropout);
  if (!split_vocab_size.empty() || !split_vocab_order.empty()) {
    const int64_t total = nn::SplitVocabulary{split_vocab_size, split_vocab_order}.size();
    require(
        total == vocab_size,
        "{}split_vocab_size: expected segments that add up to vocab_size ({}), found {}",
        where,
        vocab_size,
        total);
  }
  require(
      num_attention_heads % num_key_value_heads == 0,
      "{}num_attention_heads: expected a multiple of num_key_value_heads ({}), found {}",
      where,
      num_key_value_heads,
      num_attention_heads);
  check_blocks(*this, where);
  require(head_dim % 2 == 0, "{}head_dim: expected an even number (RoPE rotates pairs), found {}", where, head_dim);
  if (full_attention) {
    const auto& [width, key_value_heads, keys_as_values] = *full_attention;
    require(width % 2 == 0, "{}global_head_dim: expected an even number (RoPE rotates pairs), found {}", where, width);
    require(
        key_value_heads == 0 || num_attention_heads % key_value_heads == 0,
        "{}num_attention_heads: expected a multiple of num_global_key_value_heads ({}), found {}",
        where,
        key_value_heads,
        num_attention_heads);
  }
  require(
      !final_logit_softcapping || *final_logit_softcapping > 0,
      "{}final_logit_softcapping: expected a positive number, found {}; null for none",
      where,
      final_logit_softcapping.value_or(0));
  require(
      partial_rotary_factor > 0 && partial_rotary_factor <= 1 && rotary_dim() > 0 && rotary_dim() % 2 == 0,
      "{}partial_rotary_factor: expected a part of head_dim ({}) with an even number of elements, found {}",
      where,
      head_dim,
      partial_rotary_factor);
  check_rope_scaling(rope_scaling, rope_theta, full_attention ? full_attention->head_dim : rotary_dim(), where);
  if (sliding_rope) {
    positive("rope_theta of sliding_attention", sliding_rope->theta);
    check_rope_scaling(sliding_rope->scaling, sliding_rope->theta, head_dim, where);
  }
  if (std::find(pattern.sliding.begin(), pattern.sliding.end(), true) != pattern.sliding.end()) {
    require(
        pattern.sliding_window.has_value(),
        "{}sliding_window: expected a number of tokens, because layer_types has sliding_attention, found none; set it, "
        "and use_sliding_window = true if the file has that key",
        where);
    require_size(where, "sliding_window", value_of(pattern.sliding_window, "sliding_window"));
  }
}

Node to_hf(
    const DecoderConfig& c,
    const std::string& model_type,
    const std::string& architecture_prefix,
    const std::string& dtype) {
  const bool scores = descriptor::is_classifier(c.head);
  // The classes of a multimodal model's text part have "Text" in their names, except these two.
  const bool names_part = model_type.ends_with("_text") && c.head != descriptor::Head::causal_lm &&
                          c.head != descriptor::Head::token_classification;
  Node node = Node::make_table();
  node.set(
      "architectures", node_list(std::array{architecture_prefix + (names_part ? "Text" : "") + suffix_of(c.head)}));
  node.set("attention_bias", Node(c.output_bias));
  node.set("attention_dropout", Node(0.0));
  if (!c.block_configs.empty()) {
    node.set("block_configs", descriptor::write_block_configs(c.block_configs));
  }
  node.set("bos_token_id", number_or_null(c.bos_token_id));
  if (c.eos_token_id.size() > 1) {
    node.set("eos_token_id", node_list(c.eos_token_id));
  } else {
    node.set("eos_token_id", c.eos_token_id.empty() ? Node() : Node(c.eos_token_id.front()));
  }
  if (c.pad_token_id || scores) {
    node.set("pad_token_id", number_or_null(c.pad_token_id));
  }
  node.set("head_dim", Node(c.head_dim));
  node.set("hidden_act", Node("silu"));
  node.set("hidden_size", Node(c.hidden_size));
  node.set("initializer_range", Node(c.initializer_range));
  node.set("intermediate_size", Node(c.intermediate_size));
  node.set("max_position_embeddings", Node(c.max_position_embeddings));
  node.set("model_type", Node(model_type));
  node.set("num_attention_heads", Node(c.num_attention_heads));
  node.set("num_hidden_layers", Node(c.num_hidden_layers));
  node.set("num_key_value_heads", Node(c.num_key_value_heads));
  node.set("rms_norm_eps", Node(c.rms_norm_eps));
  node.set("rope_scaling", write_rope_scaling(c.rope_scaling));
  node.set("rope_theta", Node(c.rope_theta));
  if (c.moe) {
    c.moe->to_hf(node);
  }
  node.set("tie_word_embeddings", Node(c.tie_word_embeddings));
  node.set("torch_dtype", Node(dtype));
  node.set("use_cache", Node(true));
  node.set("vocab_size", Node(c.vocab_size));
  if (scores) {
    Node id2label = Node::make_table();
    Node label2id = Node::make_table();
    for (int64_t i = 0; i < c.num_labels; ++i) {
      const std::string label = "LABEL_" + std::to_string(i);
      id2label.set(std::to_string(i), Node(label));
      label2id.set(label, Node(i));
    }
    node.set("id2label", id2label);
    node.set("label2id", label2id);
    node.set("classifier_dropout", Node(c.classifier_dropout));
    if (!c.token_classification_bias) {
      node.set("token_classification_bias", Node(false));
    }
  }
  return node;
}

}  // namespace lehr::model

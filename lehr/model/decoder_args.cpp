#include "lehr/model/decoder_args.h"

#include <algorithm>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

namespace {
// True for a name such as "model.layers.3", without anything after the number.
bool is_layer(const std::string& name) {
  const size_t number = name.rfind('.') + 1;
  return number != 0 && name.find_first_not_of("0123456789", number) == std::string::npos &&
         ("." + name.substr(0, number)).ends_with(".layers.");
}

bool has_blocks(const Node& config) {
  const Node* blocks = config.find("block_configs");
  return blocks != nullptr && !blocks->is_null();
}
}  // namespace

void require_keys(const Node& config, std::span<const char* const> keys, std::span<const char* const> nullable) {
  if (has_blocks(config)) {
    return;
  }
  for (const std::string_view key : keys) {
    const bool may_be_null = std::find(nullable.begin(), nullable.end(), key) != nullable.end();
    const bool found = !config.at(std::string(key)).is_null() || may_be_null;
    require(found, "{}: {}: expected a value, found null", config.origin(), key);
  }
}

int64_t read_key_value_heads(const Node& config, int64_t otherwise) {
  constexpr const char* kKey = "num_key_value_heads";
  if (config.find(kKey) == nullptr || has_blocks(config)) {
    return int_or(config, kKey, otherwise);
  }
  return config.at(kKey).as_int();
}

descriptor::DecoderForm with_sizes(descriptor::DecoderForm form, const DecoderConfig& config) {
  form.vocab_size = config.vocab_size;
  form.hidden_size = config.hidden_size;
  form.num_attention_heads = config.num_attention_heads;
  form.head_dim = config.head_dim;
  form.qk_norm = form.qk_norm || config.qk_norm;
  form.qkv_bias = form.qkv_bias || config.qkv_bias;
  form.output_bias = form.output_bias || config.output_bias;
  form.head_rows = config.head == descriptor::Head::causal_lm ? config.vocab_size
                   : descriptor::is_classifier(config.head)   ? config.num_labels
                                                              : 0;
  form.head_bias = config.head == descriptor::Head::token_classification && config.token_classification_bias;
  form.tied_head = config.head == descriptor::Head::causal_lm && config.tie_word_embeddings;
  for (int64_t layer = 0; !config.pattern.sliding.empty() && layer < config.num_hidden_layers; ++layer) {
    form.windows.push_back(config.pattern.window(layer).value_or(0));
  }
  form.moe_latent_size = config.moe ? config.moe->moe_latent_size : 0;
  if (config.moe && config.moe->beside_dense) {
    form.ffn_norms += 3;  // after the block, before the experts and after them
  }
  if (config.full_attention) {
    form.full_attention = {
        .head_dim = config.full_attention->head_dim, .keys_as_values = config.full_attention->keys_as_values};
  }
  form.hidden_size_per_layer_input = config.hidden_size_per_layer_input;
  form.num_kv_shared_layers = config.num_kv_shared_layers;
  if (config.latent_attention) {
    form.latent_attention = config.latent_attention->form();
  }
  if (config.linear_attention) {
    form.delta_net = config.linear_attention->form();
  }
  if (config.mamba2) {
    form.mamba2 = config.mamba2->form();
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.has_states(layer)) {
      form.state_layers.push_back(layer);
    }
  }
  return form;
}

descriptor::ModelCounts count_decoder(const DecoderConfig& config, nn::Module& model, int64_t seq_len) {
  descriptor::ModelCounts counts;
  counts.num_parameters = nn::count_parameters(model);
  // An embedding lookup has no matmul; a tied head has one with the embeddings' weights.
  const bool embeddings_multiply = config.head == descriptor::Head::causal_lm && config.tie_word_embeddings;
  const int64_t embeddings = config.vocab_size * config.hidden_size;
  int64_t multiplied = counts.num_parameters - (embeddings_multiply ? 0 : embeddings);
  multiplied -= config.vocab_size * config.num_hidden_layers * config.hidden_size_per_layer_input;  // their table
  multiplied += config.mtp_modules() * embeddings;  // each uses the head once more
  for (const nn::MoELayerImpl* moe_layer : nn::moe_layers(model)) {
    multiplied -= moe_layer->num_idle_parameters();
  }
  // Forward and backward of the score and of the weighted value.
  const auto attention_of_pair = [&config](int64_t layer) {
    return 6 * config.num_attention_heads * (config.query_width(layer) + config.value_width(layer));
  };
  int64_t attention = 0, linear = 0;
  std::vector<int64_t> attention_of_layers, linear_of_layers;
  for (const auto& block : config.blocks()) {
    const auto* kept = std::get_if<descriptor::AttentionSubblock>(&block.attention);
    // A window of w tokens leaves w T - w^2 / 2 of the T^2 / 2 pairs of causal attention.
    const auto layer = static_cast<int64_t>(attention_of_layers.size());
    const int64_t window = std::min(config.window(layer).value_or(seq_len), seq_len);
    const int64_t length = window == seq_len ? seq_len : 2 * window - window * window / seq_len;
    const bool is_linear = kept != nullptr && config.has_states(layer);
    attention_of_layers.push_back(kept != nullptr && !is_linear ? attention_of_pair(layer) * length : 0);
    attention += attention_of_layers.back();
    linear_of_layers.push_back(is_linear ? config.flops_of_states() : 0);
    linear += linear_of_layers.back();
    const bool has_none = kept == nullptr || is_linear || config.reads_keys_and_values(layer);
    const int64_t cached = has_none                  ? 0
                           : config.latent_attention ? config.latent_attention->cached_per_token()
                                                     : 2 * kept->num_key_value_heads * config.query_width(layer);
    counts.kv_cache_per_token.push_back(cached);
  }
  attention += config.mtp_modules() * attention_of_pair(0) * seq_len;
  counts.attention_flops_per_pair = attention / seq_len;
  counts.flops_per_token = 6 * multiplied + linear + attention;
  counts.causal_flops_per_token = 6 * multiplied + linear + attention / 2;
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    if (is_layer(entry.key())) {
      int64_t weights = nn::count_parameters(*entry.value());
      for (const nn::MoELayerImpl* moe_layer : nn::moe_layers(*entry.value())) {
        weights -= moe_layer->num_idle_parameters();
      }
      const size_t layer = counts.layer_flops_per_token.size();
      counts.layer_flops_per_token.push_back(
          6 * weights + linear_of_layers.at(layer) + attention_of_layers.at(layer) / 2);
    }
  }
  return counts;
}

}  // namespace lehr::model

#include "lehr/model/decoder_args.h"

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

descriptor::ModelCounts count_decoder(const DecoderConfig& config, nn::Module& model, int64_t seq_len) {
  descriptor::ModelCounts counts;
  counts.num_parameters = nn::count_parameters(model);
  // Looking embeddings up multiplies nothing; as a tied head they do.
  const bool embeddings_multiply = config.head == descriptor::Head::causal_lm && config.tie_word_embeddings;
  const int64_t embeddings = config.vocab_size * config.hidden_size;
  int64_t multiplied = counts.num_parameters - (embeddings_multiply ? 0 : embeddings);
  for (const nn::MoELayerImpl* mixture : nn::moe_layers(model)) {
    multiplied -= mixture->num_idle_parameters();
  }
  int64_t attention_layers = 0;
  for (const auto& block : config.blocks()) {
    const auto* attention = std::get_if<descriptor::AttentionSubblock>(&block.attention);
    attention_layers += attention != nullptr ? 1 : 0;
    counts.kv_cache_per_token.push_back(
        attention != nullptr ? 2 * attention->num_key_value_heads * config.head_dim : 0);
  }
  const int64_t attention = 12 * attention_layers * config.num_attention_heads * config.head_dim * seq_len;
  counts.flops_per_token = 6 * multiplied + attention;
  counts.causal_flops_per_token = 6 * multiplied + attention / 2;
  return counts;
}

}  // namespace lehr::model

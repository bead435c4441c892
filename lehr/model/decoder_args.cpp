#include "lehr/model/decoder_args.h"

#include "lehr/base/error.h"

namespace lehr::model {

descriptor::ModelCounts count_decoder(const DecoderConfig& config, const nn::Module& model, int64_t seq_len) {
  descriptor::ModelCounts counts;
  counts.num_parameters = nn::count_parameters(model);
  // Looking embeddings up multiplies nothing; as a tied head they do.
  const bool embeddings_multiply = config.head == descriptor::Head::causal_lm && config.tie_word_embeddings;
  const int64_t embeddings = config.vocab_size * config.hidden_size;
  const int64_t multiplied = counts.num_parameters - (embeddings_multiply ? 0 : embeddings);
  const int64_t attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * seq_len;
  counts.flops_per_token = 6 * multiplied + attention;
  counts.causal_flops_per_token = 6 * multiplied + attention / 2;
  return counts;
}

namespace {
// "embed_tokens.token_embedding.default" -> the segment's name, if `name` is a segment below `prefix`.
std::optional<std::string> segment_of(const std::string& name, const std::string& prefix) {
  const std::string suffix = ".weight";
  if (name.starts_with(prefix) && name.ends_with(suffix)) {
    return name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  }
  return std::nullopt;
}
}  // namespace

std::vector<descriptor::StoredName> decoder_stored_names(
    const nn::Module& model, const nn::SplitVocabulary& vocabulary) {
  std::map<std::string, int64_t> first_row;
  int64_t rows = 0;
  for (const auto& segment : vocabulary.order) {
    first_row[segment] = rows;
    rows += vocabulary.sizes.at(segment);
  }
  std::vector<descriptor::StoredName> names;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    descriptor::StoredName stored{.stored = name, .shape = parameter->shape(), .parameter = name};
    for (const auto& [prefix, whole] :
         {std::pair{"model.embed_tokens.token_embedding.", "model.embed_tokens.weight"},
          std::pair{"lm_head.lm_head.", "lm_head.weight"}}) {
      if (const auto segment = segment_of(name, prefix)) {
        stored.stored = whole;
        stored.shape[0] = rows;
        stored.first_row = first_row.at(*segment);
      }
    }
    if (name == "cls_head.score.weight") {
      stored.stored = "score.weight";
    }
    names.push_back(std::move(stored));
  }
  return names;
}

}  // namespace lehr::model
